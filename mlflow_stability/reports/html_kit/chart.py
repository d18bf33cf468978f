"""Lay out a loss curve for a page: paths for SVG, and ticks and bands beside them.

Places are percent of width and height, so that the drawing stretches and its letters do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.reports.drawn_curve import DrawnCurve
from mlflow_stability.reports.html_kit.axis import HEIGHT, WIDTH, Tick, decades, round_numbers
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.text import number_text

MARGIN_SHARE = 0.04
"""Share of the height that stays free above and below the curve."""
MIN_BAND_PERCENT = 0.4
"""Percent of the width that a band takes at least, so that a finding of one step is visible."""
NUMBER_PERCENT = 6.0
"""Percent of the width that the number of a finding takes on the narrowest of screens."""
MAX_NUMBER_ROWS = 4
"""Rows of numbers above the curve; a finding that has no room in them is a band without a number."""


@dataclass(frozen=True, slots=True)
class Band:
    """A finding over the curve."""

    number: int
    episode: Finding
    left: float
    width: float
    row: int | None
    """The row of its number, counted from 0, so that neighbours do not cover each other; None: no number."""


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
        """Number of rows that the numbers of the findings take."""
        return max((band.row + 1 for band in self.bands if band.row is not None), default=0)


def chart_of(curve: DrawnCurve, numbered: Sequence[tuple[int, Finding]]) -> Chart:
    """Lay out one curve."""
    steps = _steps(curve)
    bands = _bands(curve, numbered)
    if not curve.finite.any():
        return Chart(curve, "", "", (), steps, bands)
    low, high = _heights(curve, curve.low), _heights(curve, curve.high)
    across = _across(curve, curve.steps.astype(np.float64)) * WIDTH / 100
    line, envelope = "", ""
    for part in _parts(curve):
        line += _path(across[part], (low[part] + high[part]) / 2)
        there_and_back = np.append(across[part], across[part][::-1])
        envelope += _path(there_and_back, np.append(high[part], low[part][::-1])) + "Z"
    return Chart(curve, line, envelope, _values(curve), steps, bands)


def _parts(curve: DrawnCurve) -> list[slice]:
    """The parts that can be drawn as one line: finite, and never back in time."""
    breaks = np.flatnonzero(~curve.finite[1:] | ~curve.finite[:-1] | (np.diff(curve.steps) < 0)) + 1
    parts = [slice(begin, end) for begin, end in pairwise([0, *breaks.tolist(), len(curve.steps)])]
    return [part for part in parts if curve.finite[part].all()]


def _across(curve: DrawnCurve, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip((steps - curve.first) / max(1, curve.last - curve.first) * 100, 0.0, 100.0)


def _heights(curve: DrawnCurve, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances from the top of the drawing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        # Divided by 4, differences of huge values do not overflow.
        scaled = np.log(values) if curve.logarithmic else values / 4
        ends = np.array([curve.bottom, curve.top])
        bottom, top = np.log(ends) if curve.logarithmic else ends / 4
        share = (scaled - bottom) / (top - bottom) if top > bottom else np.full(len(values), 0.5)
    return (1 - MARGIN_SHARE - share * (1 - 2 * MARGIN_SHARE)) * HEIGHT


def _path(across: NDArray[np.float64], down: NDArray[np.float64]) -> str:
    points = [f"{x:.1f} {y:.1f}" for x, y in zip(across.tolist(), down.tolist(), strict=True)]
    return f"M{points[0]}h0" if len(points) == 1 else f"M{'L'.join(points)}"


def _values(curve: DrawnCurve) -> tuple[Tick, ...]:
    values = decades(curve.bottom, curve.top) if curve.logarithmic else round_numbers(curve.bottom, curve.top, 5)
    if len(values) < 2:
        values = [curve.bottom, curve.top] if curve.top > curve.bottom else [curve.bottom]
    down = _heights(curve, np.asarray(values)) / HEIGHT * 100
    return tuple(Tick(float(at), number_text(value)) for at, value in zip(down, values, strict=True))


def _steps(curve: DrawnCurve) -> tuple[Tick, ...]:
    steps = [value for value in round_numbers(curve.first, curve.last, 5) if value == int(value)]
    steps = steps if len(steps) > 1 else sorted({float(curve.first), float(curve.last)})
    across = _across(curve, np.asarray(steps))
    return tuple(Tick(float(at), f"{int(value):,}") for at, value in zip(across, steps, strict=True))


def _bands(curve: DrawnCurve, numbered: Sequence[tuple[int, Finding]]) -> tuple[Band, ...]:
    bands = []
    free_from = [0.0] * MAX_NUMBER_ROWS  # where the last number of each row ends
    for number, finding in sorted(numbered, key=lambda item: item[1].start):
        left, right = _across(curve, np.array([finding.start, max(finding.start, finding.end)], np.float64)).tolist()
        width = max(MIN_BAND_PERCENT, right - left)
        left = min(left, 100 - width)
        row = next((row for row, free in enumerate(free_from) if left >= free), None)
        if row is not None:
            free_from[row] = left + NUMBER_PERCENT
        bands.append(Band(number, finding, left, width, row))
    return tuple(bands)
