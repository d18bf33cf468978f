"""Draw a curve with characters, and the marks of findings beneath it.

Each column shows the range of its values, so a spike of one step is visible however long the run was. Points that are
further apart are joined by a line, unless a value between them is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from mlflow_stability.reports.terminal_kit.writer import SEVERITY_STYLES
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.text import number_text

# Bits of the dots of a braille character, from the bottom up: left column and right column.
_DOTS = np.array([[0x40, 0x04, 0x02, 0x01], [0x80, 0x20, 0x10, 0x08]]).T
_LABEL_WIDTH = 8
GUTTER = _LABEL_WIDTH + 2  # width of the labels on the left


def draw(
    steps: NDArray[np.int64],
    values: NDArray[np.float64],
    width: int,
    height: int,
    *,
    dots: bool = True,
    logarithmic: bool = False,
) -> list[str]:
    """Return a curve in `width` columns and `height` rows, and the line of steps beneath.

    `dots=False` uses plain ASCII. `logarithmic=True` draws the logarithm of values that are all positive; the labels
    stay the values' own.
    """
    finite = np.isfinite(values)
    if not finite.any():
        return ["no finite value"]
    low, high = float(values[finite].min()), float(values[finite].max())
    # Divided by 4, differences of huge values do not overflow.
    heights = np.log(values[finite]) if logarithmic else values[finite] / 4
    first, last = int(steps.min()), int(steps.max())
    per_column, per_row = (2, 4) if dots else (1, 1)
    columns, rows = (width - GUTTER) * per_column, height * per_row
    places = _column_of(steps[finite], first, last, columns)
    grid = np.zeros((rows, columns), dtype=bool)
    for column, (bottom, top) in _ranges(*_joined(places, heights, np.diff(np.flatnonzero(finite)) == 1)).items():
        grid[_row(bottom, heights, rows) : _row(top, heights, rows) + 1, column] = True
    lines = []
    for number in range(height - 1, -1, -1):
        block = grid[number * per_row : (number + 1) * per_row]
        text = _braille(block) if dots else "".join("*" if lit else " " for lit in block[0])
        label = number_text(high) if number == height - 1 else number_text(low) if number == 0 else ""
        lines.append(f"{label:>{_LABEL_WIDTH}} {'┤' if dots else '|'}{text}".rstrip())
    return [*lines, axis(first, last, width)]


def axis(first: int, last: int, width: int) -> str:
    """Return the line beneath a curve: its first step at the left, its last at the right."""
    left, right = f"{first:,}", f"{last:,}"
    return " " * GUTTER + left + " " * max(1, width - GUTTER - len(left) - len(right)) + right


def mark_line(
    findings: Sequence[tuple[int, Finding]], first: int, last: int, width: int, *, unicode: bool = True
) -> Text:
    """Return the marks of numbered findings beneath a curve of these steps.

    Each finding has its number where it began and a bar to its end; bars of worse findings cover those of others.
    """
    columns = max(1, width - GUTTER)
    bar, large_number = ("━", "•") if unicode else ("=", "+")
    cells = [(" ", "")] * columns
    spans = []
    for number, finding in findings:
        ends = np.array([finding.start, max(finding.start, finding.end)])
        begin, end = _column_of(ends, first, last, columns).tolist()
        spans.append((number, finding, begin, end))
    for _, finding, begin, end in sorted(spans, key=lambda span: (span[1].severity, span[2])):
        cells[begin : end + 1] = [(bar, SEVERITY_STYLES[finding.severity])] * (end + 1 - begin)
    numbered: set[int] = set()
    for number, finding, begin, _ in spans:
        column = next((column for column in range(begin, columns) if column not in numbered), begin)
        numbered.add(column)
        cells[column] = (str(number) if number < 10 else large_number, SEVERITY_STYLES[finding.severity])
    line = Text.assemble(" " * GUTTER, *cells, no_wrap=True)
    line.rstrip()
    return line


def _column_of(steps: NDArray[np.int64], first: int, last: int, columns: int) -> NDArray[np.int64]:
    shares = (steps.astype(np.float64) - first) / max(1, last - first)
    return np.clip(shares * (columns - 1) + 1e-9, 0, columns - 1).astype(np.int64)


def _joined(
    places: NDArray[np.int64], heights: NDArray[np.float64], neighbours: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Add the points of straight lines between neighbours that are columns apart."""
    gaps = np.diff(places)
    wide = np.flatnonzero(neighbours & (gaps > 1))
    between = [places[start] + np.arange(1, gaps[start]) for start in wide]
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
    bits = (block.reshape(4, -1, 2) * _DOTS[:, None, :]).sum(axis=(0, 2))
    return "".join(chr(0x2800 + int(character)) if character else " " for character in bits)
