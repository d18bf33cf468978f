"""Names the shape of a distribution: healthy, multi-modal, heavy-tailed, shifted or collapsed.

In: the histogram and the percentiles of a layer, as a `LayerTable` has them. Out: one word. A normal distribution and
a Laplace distribution around zero are healthy. The first of these that fits is the name: collapsed, multi-modal,
shifted, heavy-tailed. Guarantees: nothing is said of the shape of a handful of values, such as those of a small bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.layer_table import PERCENTILES, LayerTable

Shape: TypeAlias = Literal[
    "healthy", "multi-modal", "heavy-tailed", "shifted", "collapsed", "too few values", "unknown"
]
QUARTILES_OF_NORMAL = 1.349
"""How many standard deviations lie between the quartiles of a normal distribution."""


@dataclass(frozen=True, slots=True)
class ShapeLimits:
    """Where one shape ends and another begins."""

    fewest: int = 128
    """Of fewer values nothing is said: 1st and 99th percentile are then hardly more than the lowest and the highest.
    Two peaks are seen from about 500 values on."""
    narrowest: float = 1e-6
    """Collapsed: the quartiles are closer than this share of what p1 and p99 reach, so that half of all are one."""
    heaviest: float = 7.0
    """Heavy-tailed: p1 and p99 are more than this many times as far apart as the quartiles. Normal: 3.4, Laplace: 5.6,
    Student's t with two degrees of freedom: 8.5."""
    furthest: float = 1.0
    """Shifted: the median is more than this many standard deviations from zero, as the quartiles tell them."""
    smallest_share: float = 0.1
    """Multi-modal: each of two peaks holds at least this share of the values, ..."""
    deepest_valley: float = 0.7
    """... the valley between them is lower than this share of the lower peak, ..."""
    surest: float = 4.0
    """... and by this many times what counting alone would scatter."""


def shape_of(table: LayerTable, layer: int, limits: ShapeLimits | None = None) -> Shape:
    """The shape of one layer of a table; ``unknown`` where no histogram was measured or there are no finite values."""
    limits = limits or ShapeLimits()
    if not table.has_histograms or not np.isfinite(table.percentiles[layer]).all():
        return "unknown"
    p1, p25, p50, p75, p99 = (table.percentiles[layer, PERCENTILES.index(each)] for each in _READ)
    if table.counts[layer].sum() < limits.fewest:
        return "too few values"
    quartiles = p75 - p25
    if not quartiles > limits.narrowest * max(abs(p1), abs(p99)):
        return "collapsed"
    if _peaks(table.counts[layer], limits) > 1:
        return "multi-modal"
    if abs(p50) > limits.furthest * quartiles / QUARTILES_OF_NORMAL:
        return "shifted"
    return "heavy-tailed" if p99 - p1 > limits.heaviest * quartiles else "healthy"


_READ = ("p1", "p25", "p50", "p75", "p99")
_SMOOTHING = np.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16.0


def _peaks(counts: NDArray[np.int64], limits: ShapeLimits) -> int:
    """How many peaks there are that are no accident: the smoothed histogram is cut at its deepest valleys."""
    smooth = np.convolve(np.convolve(counts, _SMOOTHING, "same"), _SMOOTHING, "same")
    return _peaks_between(smooth, counts, 0, len(counts), limits)


def _peaks_between(
    smooth: NDArray[np.float64], counts: NDArray[np.int64], begin: int, end: int, limits: ShapeLimits
) -> int:
    cuts = [at for at in range(begin + 1, end - 1) if _is_valley(smooth, counts, begin, at, end, limits)]
    if not cuts:
        return 1
    deepest = min(cuts, key=lambda at: float(smooth[at]))
    left = _peaks_between(smooth, counts, begin, deepest, limits)
    return left + _peaks_between(smooth, counts, deepest, end, limits)


def _is_valley(
    smooth: NDArray[np.float64], counts: NDArray[np.int64], begin: int, at: int, end: int, limits: ShapeLimits
) -> bool:
    lower = float(min(smooth[begin:at].max(), smooth[at:end].max()))
    least = limits.smallest_share * counts.sum()
    if counts[begin:at].sum() < least or counts[at:end].sum() < least:
        return False
    return bool(smooth[at] < limits.deepest_valley * lower and lower - smooth[at] > limits.surest * np.sqrt(lower))
