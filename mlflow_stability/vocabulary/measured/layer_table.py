"""How gradients or weights were spread in each layer at one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STATISTICS = ("mean", "std", "abs_max", "zeros")
"""Measured each time: the mean, the standard deviation, the largest absolute value, the share of zeros."""
PERCENTILES = ("min", "p1", "p25", "p50", "p75", "p95", "p99", "max")
"""Measured with the histogram."""
LEVELS = (0.0, 0.01, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""The share of values below each of the percentiles."""
BINS = 64
WIDTH = len(STATISTICS) + len(PERCENTILES) + 2 + BINS
"""How many numbers a layer has in the flat form: all of these, and the two ends of the histogram."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerTable:
    """One row for each layer, in the order of the model from input to output.

    Everything but ``abs_max`` and ``zeros`` is of a sample, the same places every time.
    """

    step: int
    attempt: int
    what: str
    """``gradient`` or ``weight``."""
    layers: tuple[str, ...]
    statistics: NDArray[np.float64]
    """A column for each of `STATISTICS`."""
    percentiles: NDArray[np.float64]
    """A column for each of `PERCENTILES`; no columns where only the statistics were measured."""
    edges: NDArray[np.float64]
    """Where the bins of each layer's histogram begin and end: one column more than `counts`, or none at all."""
    counts: NDArray[np.int64]
    """How many values are in each bin. The first and the last bin also hold what lies beyond them."""

    @property
    def has_histograms(self) -> bool:
        """Whether percentiles and histograms were measured."""
        return bool(self.counts.shape[1])


def layer_table_of(step: int, attempt: int, what: str, layers: Sequence[str], values: Sequence[float]) -> LayerTable:
    """The table, from its flat form: for each layer `WIDTH` numbers, or only the statistics."""
    rows = np.asarray(values, np.float64).reshape(len(layers), -1)
    if rows.shape[1] == len(STATISTICS):
        none = rows[:, :0]
        return LayerTable(step, attempt, what, tuple(layers), rows, none, none, none.astype(np.int64))
    statistics, percentiles, ends, counts = np.split(rows, np.cumsum([len(STATISTICS), len(PERCENTILES), 2]), axis=1)
    share = np.linspace(0.0, 1.0, counts.shape[1] + 1)
    edges = ends[:, :1] * (1.0 - share) + ends[:, 1:] * share
    return LayerTable(
        step, attempt, what, tuple(layers), statistics, percentiles, edges, np.nan_to_num(counts).astype(np.int64)
    )
