"""Turns what is known of a layer's values into the outline of a ridge.

In: a row of a table of layers. Out: heights along an axis in widths of the ridge. Promised: where few values are so far
out that all others lie in two or three bins of the histogram, the percentiles say how these are spread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.distribution_shape import QUARTILES_OF_NORMAL
from mlflow_stability.vocabulary.layer_table import LEVELS, PERCENTILES, STATISTICS, LayerTable

REACH = 6.0
"""How far to both sides a ridge is drawn, in widths."""
_FINE = 0.05
_LEAST_SMOOTH, _MOST_SMOOTH, _SMOOTH = 0.1, 0.4, 0.7
"""Over how many widths an outline is smoothed: at least, at most, and for each width that a bin takes."""

Floats = NDArray[np.float64]


def width_of(table: LayerTable, row: int) -> float:
    """As the quartiles tell it; as the standard deviation does where half of all values are one; zero: all are one."""
    p25, p75 = (table.percentiles[row, PERCENTILES.index(each)] for each in ("p25", "p75"))
    quartiles = float(p75 - p25) / QUARTILES_OF_NORMAL
    width = quartiles if quartiles > 0 else float(table.statistics[row, STATISTICS.index("std")])
    return width if np.isfinite(width) else 0.0


def outline(table: LayerTable, row: int) -> tuple[Floats, Floats]:
    """Where the outline goes, in widths, and how high it is there, as a share of the highest."""
    width, edges = width_of(table, row), table.edges[row]
    span = float(edges[1] - edges[0])
    if not (width > 0 and span > 0):  # all values are one: a needle
        return np.array([-REACH, 0, 0, 0, REACH]), np.array([0.0, 0, 1, 0, 0])
    places, below = _shares_below(table, row)
    at = np.arange(-REACH - 2, REACH + 2 + _FINE / 2, _FINE)
    density = np.diff(np.interp(at * width, places, below, left=0.0, right=1.0))
    middle = (at[1:] + at[:-1]) / 2
    sigma = min(_MOST_SMOOTH, max(_LEAST_SMOOTH, _SMOOTH * span / width)) / _FINE
    bell = np.exp(-0.5 * (np.arange(-round(3 * sigma), round(3 * sigma) + 1) / sigma) ** 2)
    height = np.convolve(density, bell, "same")
    least, most = (float(table.percentiles[row, PERCENTILES.index(each)]) / width for each in ("min", "max"))
    drawn = (middle >= max(-REACH, least - _MOST_SMOOTH)) & (middle <= min(REACH, most + _MOST_SMOOTH))
    highest = float(height[drawn].max(initial=0.0))
    if not highest > 0:  # everything lies farther out than is drawn
        return np.array([-REACH, REACH]), np.zeros(2)
    return middle[drawn], height[drawn] / highest


def _shares_below(table: LayerTable, row: int) -> tuple[Floats, Floats]:
    """Places, and the share of values below each, by histogram and percentiles together."""
    counts = table.counts[row].astype(np.float64)
    binned = np.concatenate([[0.0], np.cumsum(counts) / max(1.0, counts.sum())])
    inner = slice(1, -1)  # the outermost bins hold what lies beyond them
    places = np.concatenate([table.edges[row][inner], table.percentiles[row]])
    below = np.concatenate([binned[inner], LEVELS])
    order = np.lexsort((below, places))
    return places[order], np.maximum.accumulate(below[order])
