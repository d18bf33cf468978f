"""Draws a curve with characters.

In: steps and values. Out: lines of text, the axis included. Each column shows the range of the values that fall into
it, so a spike of one step is seen however long the run was; between points that are further apart a line is drawn, and
none where the values between them are not finite.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# The dots of a braille character, from the bottom up, left column and right column.
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
_LABEL = 8
GUTTER = _LABEL + 2
"""How many columns the labels on the left take."""


def draw(
    steps: NDArray[np.int64],
    values: NDArray[np.float64],
    width: int,
    height: int,
    *,
    dots: bool = True,
    logarithmic: bool = False,
) -> list[str]:
    """A curve in `width` columns and `height` rows, and the line of steps beneath; `dots=False`: plain ASCII.

    ``logarithmic=True`` draws the logarithm of values that are all positive; the labels stay the values' own.
    """
    finite = np.isfinite(values)
    if not finite.any():
        return ["no finite value"]
    low, high = float(values[finite].min()), float(values[finite].max())
    heights = np.log(values[finite]) if logarithmic else values[finite] / 4  # whose differences do not overflow
    first, last = int(steps.min()), int(steps.max())
    per_column, per_row = (2, 4) if dots else (1, 1)
    columns, rows = (width - GUTTER) * per_column, height * per_row
    places = column_of(steps[finite], first, last, columns)
    grid = np.zeros((rows, columns), dtype=bool)
    for column, (bottom, top) in _ranges(*_joined(places, heights, np.diff(np.flatnonzero(finite)) == 1)).items():
        grid[_row(bottom, heights, rows) : _row(top, heights, rows) + 1, column] = True
    lines = []
    for number in range(height - 1, -1, -1):
        block = grid[number * per_row : (number + 1) * per_row]
        text = _braille(block) if dots else "".join("*" if lit else " " for lit in block[0])
        label = number_text(high) if number == height - 1 else number_text(low) if number == 0 else ""
        lines.append(f"{label:>{_LABEL}} {'┤' if dots else '|'}{text}".rstrip())
    return [*lines, axis(first, last, width)]


def axis(first: int, last: int, width: int) -> str:
    """The line beneath a curve: its first step at the left, its last at the right."""
    left, right = f"{first:,}", f"{last:,}"
    return " " * GUTTER + left + " " * max(1, width - GUTTER - len(left) - len(right)) + right


def column_of(steps: NDArray[np.int64], first: int, last: int, columns: int) -> NDArray[np.int64]:
    """Where steps between the first and the last come to stand."""
    shares = (steps.astype(np.float64) - first) / max(1, last - first)
    return np.clip(shares * (columns - 1) + 1e-9, 0, columns - 1).astype(np.int64)


def number_text(value: float) -> str:
    """A number in at most eight characters, for people."""
    if not math.isfinite(value):
        return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}[str(float(value))]
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    return f"{value:.1e}"


def _joined(
    places: NDArray[np.int64], heights: NDArray[np.float64], neighbours: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The points, and between neighbours that are columns apart those of the straight line from one to the other."""
    gaps = np.diff(places)
    wide = np.flatnonzero(neighbours & (gaps > 1))
    between = [(places[each] + np.arange(1, gaps[each])) for each in wide]
    lines = [np.interp(line, places[[i, i + 1]], heights[[i, i + 1]]) for i, line in zip(wide, between, strict=True)]
    return np.concatenate([places, *between]), np.concatenate([heights, *lines])


def _ranges(places: NDArray[np.int64], heights: NDArray[np.float64]) -> dict[int, tuple[float, float]]:
    """Lowest and highest value of each column, joined with the neighbour's so that the curve has no holes."""
    ranges: dict[int, tuple[float, float]] = {}
    before: float | None = None
    for column in np.unique(places):
        here = heights[places == column]
        joined = here if before is None else np.append(here, (before + here[0]) / 2)
        ranges[int(column)] = (float(joined.min()), float(joined.max()))
        before = float(here[-1])
    return ranges


def _row(value: float, heights: NDArray[np.float64], rows: int) -> int:
    low, high = float(heights.min()), float(heights.max())
    return 0 if high == low else min(rows - 1, int((value - low) / (high - low) * rows))


def _braille(block: NDArray[np.bool_]) -> str:
    """One row of characters from four rows of dots; row 0 is the lowest."""
    return "".join(_character(block[:, column : column + 2]) for column in range(0, block.shape[1], 2))


def _character(cell: NDArray[np.bool_]) -> str:
    bits = sum(_DOTS[side][height] for height in range(4) for side in range(cell.shape[1]) if cell[height, side])
    return chr(0x2800 + bits) if bits else " "
