"""Arrays measured by layer: tables of gradients or weights, and attention maps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

STATISTICS = ("mean", "std", "abs_max", "zeros")  # measured each time; ``zeros`` is the share of zeros
PERCENTILES = ("min", "p1", "p25", "p50", "p75", "p95", "p99", "max")  # measured with the histogram
LEVELS = (0.0, 0.01, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)  # the share of values below each of the percentiles
BINS = 64
WIDTH = len(STATISTICS) + len(PERCENTILES) + 2 + BINS
"""Numbers of a layer in the flat form: all of these, and the two ends of the histogram."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerTable:
    """One row for each layer, in the order of the model from input to output.

    Everything but ``abs_max`` and ``zeros`` is of a sample of the values, at the same places every time.
    """

    step: int
    attempt: int
    what: str  # ``gradient`` or ``weight``
    layers: tuple[str, ...]
    statistics: NDArray[np.float64]  # a column for each of `STATISTICS`
    percentiles: NDArray[np.float64]  # a column for each of `PERCENTILES`; none where only statistics were measured
    edges: NDArray[np.float64]  # edges of the bins of each layer's histogram: one column more than `counts`, or none
    counts: NDArray[np.int64]  # number of values in each bin; the first and the last also hold those beyond them

    @property
    def has_histograms(self) -> bool:
        """Whether percentiles and histograms were measured."""
        return bool(self.counts.shape[1])


def layer_table_from(step: int, attempt: int, what: str, layers: Sequence[str], values: Sequence[float]) -> LayerTable:
    """Read the flat form of a table: for each layer `WIDTH` numbers, or only the statistics."""
    rows = np.asarray(values, np.float64).reshape(len(layers), -1)
    if rows.shape[1] == len(STATISTICS):
        empty = rows[:, :0]
        return LayerTable(step, attempt, what, tuple(layers), rows, empty, empty, empty.astype(np.int64))
    statistics, percentiles, ends, counts = np.split(rows, np.cumsum([len(STATISTICS), len(PERCENTILES), 2]), axis=1)
    share = np.linspace(0.0, 1.0, counts.shape[1] + 1)
    edges = ends[:, :1] * (1.0 - share) + ends[:, 1:] * share
    return LayerTable(
        step, attempt, what, tuple(layers), statistics, percentiles, edges, np.nan_to_num(counts).astype(np.int64)
    )


Shape: TypeAlias = Literal[
    "healthy", "multi-modal", "heavy-tailed", "shifted", "collapsed", "too few values", "unknown"
]
NORMAL_IQR = 1.349  # interquartile range of a normal distribution in standard deviations


@dataclass(frozen=True, slots=True)
class ShapeLimits:
    min_values: int = 128
    """Fewer values have no shape: their 1st and 99th percentiles are almost the lowest and the highest. Two peaks are
    recognised from about 500 values on."""
    min_relative_iqr: float = 1e-6
    """Collapsed: the interquartile range is below this share of the larger of p1 and p99, so that half of the values
    are equal."""
    max_tail_ratio: float = 7.0
    """Heavy-tailed: p99 - p1 exceeds this multiple of the interquartile range. Normal: 3.4, Laplace: 5.6, Student's t
    with two degrees of freedom: 8.5."""
    max_shift: float = 1.0  # shifted: the median is more than this many standard deviations, by quartiles, from zero
    min_peak_share: float = 0.1  # Multi-modal: each of two peaks holds at least this share of the values, ...
    max_valley_share: float = 0.7  # ... the valley between them is lower than this share of the lower peak, ...
    min_valley_sigmas: float = 4.0  # ... by more than this many standard deviations of the counts


def distribution_shape(table: LayerTable, layer: int, limits: ShapeLimits | None = None) -> Shape:
    """Name the shape of one layer's values: the first that fits of collapsed, multi-modal, shifted, heavy-tailed.

    Normal and Laplace distributions around zero are healthy. Without a histogram or finite values: ``unknown``.
    """
    limits = limits or ShapeLimits()
    if not table.has_histograms or not np.isfinite(table.percentiles[layer]).all():
        return "unknown"
    counts = table.counts[layer]
    if counts.sum() < limits.min_values:
        return "too few values"
    names = ("p1", "p25", "p50", "p75", "p99")
    p1, p25, p50, p75, p99 = (table.percentiles[layer, PERCENTILES.index(name)] for name in names)
    iqr = p75 - p25
    if not iqr > limits.min_relative_iqr * max(abs(p1), abs(p99)):
        return "collapsed"
    smooth = np.convolve(np.convolve(counts, _SMOOTHING, "same"), _SMOOTHING, "same")
    if _count_peaks(smooth, counts, 0, len(counts), limits) > 1:
        return "multi-modal"
    if abs(p50) > limits.max_shift * iqr / NORMAL_IQR:
        return "shifted"
    return "heavy-tailed" if p99 - p1 > limits.max_tail_ratio * iqr else "healthy"


_SMOOTHING = np.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16.0


def _count_peaks(
    smooth: NDArray[np.float64], counts: NDArray[np.int64], begin: int, end: int, limits: ShapeLimits
) -> int:
    """Count the peaks of a histogram, cutting it at its deepest valleys."""
    valleys = [at for at in range(begin + 1, end - 1) if _is_valley(smooth, counts, begin, at, end, limits)]
    if not valleys:
        return 1
    deepest = min(valleys, key=lambda at: float(smooth[at]))
    left = _count_peaks(smooth, counts, begin, deepest, limits)
    return left + _count_peaks(smooth, counts, deepest, end, limits)


def _is_valley(
    smooth: NDArray[np.float64], counts: NDArray[np.int64], begin: int, at: int, end: int, limits: ShapeLimits
) -> bool:
    min_count = limits.min_peak_share * counts.sum()
    if counts[begin:at].sum() < min_count or counts[at:end].sum() < min_count:
        return False
    peak = float(min(smooth[begin:at].max(), smooth[at:end].max()))
    depth = peak - smooth[at]
    return bool(smooth[at] < limits.max_valley_share * peak and depth > limits.min_valley_sigmas * np.sqrt(peak))


Arrays = Mapping[str, NDArray[Any]]

UNNAMED_LAYER = "attention"  # layer name of weights that were given without one


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap:
    """The weights of some heads, their mean over all heads, and two numbers of every head.

    Example:

        >>> weights = np.full((1, 2, 3), 1 / 3, np.float16)
        >>> AttentionMap(10, 0, "encoder.attention", 0, (0,), weights, weights[0], np.ones(1), np.zeros(1)).shape
        (2, 3)
    """

    step: int  # the step at which it was measured
    attempt: int  # how many rollbacks there were before it
    layer: str  # the name of the module that attends
    layer_number: int  # its place in the order of the forward pass, from 0 on
    heads: tuple[int, ...]  # which heads `weights` holds, from 0 on
    weights: NDArray[np.float16]
    """By head, query and key. A row is a share of all keys that the model used, so where there are more keys than are
    kept, it adds up to less than 1."""
    average: NDArray[np.float32]  # by query and key: the mean over all heads, those left out of `weights` too
    entropy: NDArray[np.float32]
    """Of every head, in the order of heads: 0 where each query looks at one key, 1 where at all of them alike."""
    max_logit: NDArray[np.float32]  # of every head: the largest score before the softmax
    kind: str = "self"  # ``self`` or ``cross``
    causal: bool = False  # whether no query may look at a key behind its own place
    tokens: tuple[int, int] = (0, 0)  # how many queries and keys there were in all; of these the first are kept

    @property
    def all_heads(self) -> int:
        """How many heads the layer has."""
        return len(self.entropy)

    @property
    def shape(self) -> tuple[int, int]:
        """How many queries and keys are kept."""
        queries, keys = self.average.shape
        return queries, keys


_ARRAYS = {"weights": np.float16, "average": np.float32, "entropy": np.float32, "max_logit": np.float32}


def attention_arrays(attention: AttentionMap) -> dict[str, NDArray[Any]]:
    """Return the map as named arrays, for `attention_map_from`."""
    header = {field.name: getattr(attention, field.name) for field in fields(attention) if field.name not in _ARRAYS}
    text = json.dumps(header, default=lambda number: number.item())  # numbers of NumPy
    return {
        "head": np.frombuffer(text.encode(), np.uint8),  # NumPy text takes four bytes a letter
        **{name: np.asarray(getattr(attention, name), dtype) for name, dtype in _ARRAYS.items()},
    }


def attention_map_from(arrays: Arrays) -> AttentionMap:
    """Read the arrays that `attention_arrays` made; KeyError or ValueError where they are not a map."""
    header = json.loads(arrays["head"].tobytes())
    weights, average = arrays["weights"], arrays["average"]
    if weights.ndim != 3 or average.shape != weights.shape[1:] or len(header["heads"]) != len(weights):
        raise ValueError(f"weights of the shape {weights.shape} and an average of {average.shape} do not form a map")
    queries, keys = header["tokens"]
    values: dict[str, Any] = {
        name: header[name] for name in ("step", "attempt", "layer", "layer_number", "kind", "causal")
    }
    values |= {name: arrays[name] for name in _ARRAYS}
    return AttentionMap(heads=tuple(header["heads"]), tokens=(queries, keys), **values)
