"""Lays out a loss curve for a page: what is where, in shares of the drawing.

In: a curve ready for drawing and the numbered episodes. Out: the paths, ticks and bands that the template puts into SVG
and beside it. Places are percent of width and height, so that the drawing stretches and its letters do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.reports.html_kit.axis import Tick, decades, round_numbers
from mlflow_stability.reports.html_kit.sketched import DrawnCurve
from mlflow_stability.reports.terminal_kit import number_text
from mlflow_stability.vocabulary.result import Finding

WIDTH, HEIGHT = 1000, 300
"""Units of the drawing."""
HEADROOM = 0.04
"""Share of the height that stays free above and below the curve."""
NARROWEST = 0.4
"""Percent of the width that a band takes at least, so that an episode of one step is seen."""


NUMBER = 6.0
"""Percent of the width that the number of an episode takes, on the narrowest of screens."""
MOST_ROWS = 4
"""Rows of numbers above the curve; an episode that finds no place in them is a band without a number."""


@dataclass(frozen=True, slots=True)
class Band:
    """An episode over the curve."""

    number: int
    episode: Finding
    left: float
    width: float
    row: int | None
    """Which row its number stands in, counted from 0, so that neighbours do not cover each other; None: in none."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve, laid out."""

    curve: DrawnCurve
    line: str
    """SVG path through the middle of every stretch."""
    envelope: str
    """SVG path around lowest and highest values."""
    values: tuple[Tick, ...]
    steps: tuple[Tick, ...]
    bands: tuple[Band, ...]

    @property
    def rows(self) -> int:
        """How many rows the numbers of the episodes take."""
        return max((band.row + 1 for band in self.bands if band.row is not None), default=0)


def chart_of(curve: DrawnCurve, numbered: Sequence[tuple[int, Finding]]) -> Chart:
    """Lay out one curve."""
    steps = _steps(curve)
    bands = _bands(curve, numbered)
    if not curve.finite.any():
        return Chart(curve, "", "", (), steps, bands)
    low, high = _heights(curve, curve.low), _heights(curve, curve.high)
    pieces = _pieces(curve)
    across = _across(curve, curve.steps.astype(np.float64)) * WIDTH / 100
    line = "".join(_path(across[piece], (low[piece] + high[piece]) / 2) for piece in pieces)
    envelope = "".join(_around(across[piece], low[piece], high[piece]) for piece in pieces)
    return Chart(curve, line, envelope, _values(curve), steps, bands)


def _pieces(curve: DrawnCurve) -> list[slice]:
    """The parts that can be drawn as one line: finite, and never back in time."""
    breaks = np.flatnonzero(~curve.finite[1:] | ~curve.finite[:-1] | (np.diff(curve.steps) < 0)) + 1
    edges = [0, *breaks.tolist(), len(curve.steps)]
    pieces = [slice(begin, end) for begin, end in pairwise(edges)]
    return [piece for piece in pieces if curve.finite[piece].all()]


def _across(curve: DrawnCurve, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip((steps - curve.first) / max(1, curve.last - curve.first) * 100, 0.0, 100.0)


def _heights(curve: DrawnCurve, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far down the drawing values stand; quartered first, so that their differences do not overflow."""
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = np.log(values) if curve.logarithmic else values / 4
        ends = np.array([curve.bottom, curve.top])
        bottom, top = np.log(ends) if curve.logarithmic else ends / 4
        share = (scaled - bottom) / (top - bottom) if top > bottom else np.full(len(values), 0.5)
    return (1 - HEADROOM - share * (1 - 2 * HEADROOM)) * HEIGHT


def _path(across: NDArray[np.float64], down: NDArray[np.float64]) -> str:
    points = [f"{x:.1f} {y:.1f}" for x, y in zip(across.tolist(), down.tolist(), strict=True)]
    return f"M{points[0]}h0" if len(points) == 1 else f"M{'L'.join(points)}"


def _around(across: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]) -> str:
    return _path(np.append(across, across[::-1]), np.append(high, low[::-1])) + "Z"


def _values(curve: DrawnCurve) -> tuple[Tick, ...]:
    found = decades(curve.bottom, curve.top) if curve.logarithmic else round_numbers(curve.bottom, curve.top, 5)
    if len(found) < 2:
        found = [curve.bottom, curve.top] if curve.top > curve.bottom else [curve.bottom]
    down = _heights(curve, np.asarray(found)) / HEIGHT * 100
    return tuple(Tick(float(at), number_text(value)) for at, value in zip(down, found, strict=True))


def _steps(curve: DrawnCurve) -> tuple[Tick, ...]:
    found = [value for value in round_numbers(curve.first, curve.last, 5) if value == int(value)]
    found = found if len(found) > 1 else sorted({float(curve.first), float(curve.last)})
    across = _across(curve, np.asarray(found))
    return tuple(Tick(float(at), f"{int(value):,}") for at, value in zip(across, found, strict=True))


def _bands(curve: DrawnCurve, numbered: Sequence[tuple[int, Finding]]) -> tuple[Band, ...]:
    bands = []
    free_from = [0.0] * MOST_ROWS  # for each row of numbers, where its last one ends
    for number, episode in sorted(numbered, key=lambda one: one[1].start):
        left, right = _across(curve, np.array([episode.start, max(episode.start, episode.end)], np.float64)).tolist()
        width = max(NARROWEST, right - left)
        left = min(left, 100 - width)
        row = next((each for each, free in enumerate(free_from) if left >= free), None)
        if row is not None:
            free_from[row] = left + NUMBER
        bands.append(Band(number, episode, left, width, row))
    return tuple(bands)
