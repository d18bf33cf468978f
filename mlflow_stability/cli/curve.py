"""Draws a curve with characters.

In: steps and values. Out: lines of text, the axis included. Each column shows the range of the values that fall into
it, so a spike of one step is seen however long the run was.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# The dots of a braille character, from the bottom up, left column and right column.
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
_LABEL = 8


def draw(
    steps: NDArray[np.int64], values: NDArray[np.float64], width: int, height: int, *, dots: bool = True
) -> list[str]:
    """A curve in `width` columns and `height` rows, and the line of steps beneath; `dots=False`: plain ASCII."""
    finite = np.isfinite(values)
    if not finite.any():
        return ["no finite value"]
    low, high = float(values[finite].min()), float(values[finite].max())
    per_column, per_row = (2, 4) if dots else (1, 1)
    columns, rows = (width - _LABEL - 2) * per_column, height * per_row
    ranges = _ranges(steps[finite], values[finite], columns)
    grid = np.zeros((rows, columns), dtype=bool)
    for column, (bottom, top) in ranges.items():
        grid[_row(bottom, low, high, rows) : _row(top, low, high, rows) + 1, column] = True
    lines = []
    for number in range(height - 1, -1, -1):
        block = grid[number * per_row : (number + 1) * per_row]
        text = _braille(block) if dots else "".join("*" if lit else " " for lit in block[0])
        label = number_text(high) if number == height - 1 else number_text(low) if number == 0 else ""
        lines.append(f"{label:>{_LABEL}} {'┤' if dots else '|'}{text}".rstrip())
    first, last = str(int(steps[0])), str(int(steps[-1]))
    gap = max(1, width - _LABEL - 2 - len(first) - len(last))
    return [*lines, " " * (_LABEL + 2) + first + " " * gap + last]


def number_text(value: float) -> str:
    """A number in at most eight characters, for people."""
    if not math.isfinite(value):
        return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}[str(float(value))]
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.1e}"


def _ranges(steps: NDArray[np.int64], values: NDArray[np.float64], columns: int) -> dict[int, tuple[float, float]]:
    """Lowest and highest value of each column, joined with the neighbour's so that the curve has no holes."""
    span = max(1, int(steps[-1] - steps[0]))
    places = ((steps - steps[0]) * (columns - 1)) // span
    ranges: dict[int, tuple[float, float]] = {}
    before: float | None = None
    for column in np.unique(places):
        here = values[places == column]
        joined = here if before is None else np.append(here, (before + here[0]) / 2)
        ranges[int(column)] = (float(joined.min()), float(joined.max()))
        before = float(here[-1])
    return ranges


def _row(value: float, low: float, high: float, rows: int) -> int:
    return 0 if high == low else min(rows - 1, int((value - low) / (high - low) * rows))


def _braille(block: NDArray[np.bool_]) -> str:
    """One row of characters from four rows of dots; row 0 is the lowest."""
    return "".join(_character(block[:, column : column + 2]) for column in range(0, block.shape[1], 2))


def _character(cell: NDArray[np.bool_]) -> str:
    bits = sum(_DOTS[side][height] for height in range(4) for side in range(cell.shape[1]) if cell[height, side])
    return chr(0x2800 + bits) if bits else " "
