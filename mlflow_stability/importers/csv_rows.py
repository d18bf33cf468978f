"""Split the lines of a table into rows and cells.

A row is one line, unless a quoted cell holds the end of a line. Comments and blank lines are no rows.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

MAX_QUOTED_LINES = 500
MAX_QUOTED_CHARACTERS = 100_000
"""A quote that is still open after this many characters is never closed; `csv` reads 131,072."""
DECIMAL_SAMPLE_ROWS = 50
NO_VALUE = ["", "None", "none", "null", "NULL", "NA", "N/A", "n/a", "-", "--", "<NA>"]
"""Texts of a cell without a value."""
_COMMA_NUMBER = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")


def rows_of(lines: Iterable[str], separator: str) -> Iterator[tuple[int, str]]:
    """Yield the rows of a table, each with the number of its first line, counted from 1.

    A quote that is never closed swallows no other row. One pass, with bounded memory.
    """
    numbered = enumerate(lines, 1)
    ahead: deque[tuple[int, str]] = deque()
    while (current := ahead.popleft() if ahead else next(numbered, None)) is not None:
        number, line = current
        if not line.strip() or line.startswith("#"):
            continue
        if '"' in line and line.count('"') % 2:
            rest = _rest_of_row(line, separator, ahead, numbered)
            line = "\n".join([line, *rest]) if rest else line.replace('"', "")
        yield number, line


def _rest_of_row(
    line: str, separator: str, ahead: deque[tuple[int, str]], numbered: Iterator[tuple[int, str]]
) -> list[str]:
    """Return the further lines of a row with an open quote; none where it is never closed."""
    rest: list[str] = []
    quotes, size = line.count('"'), len(line)
    while quotes % 2 and len(rest) < MAX_QUOTED_LINES and size <= MAX_QUOTED_CHARACTERS:
        if len(rest) == len(ahead):
            following = next(numbered, None)
            if following is None:
                return []
            ahead.append(following)
        rest.append(ahead[len(rest)][1])
        quotes += rest[-1].count('"')
        size += len(rest[-1]) + 1
    if quotes % 2 or size > MAX_QUOTED_CHARACTERS:
        return []
    try:
        next(csv.reader(["\n".join([line, *rest])], delimiter=separator, skipinitialspace=True, strict=True))
    except csv.Error:  # a quote at a place where none can be
        return []
    for _ in rest:
        ahead.popleft()
    return rest


def cells_of(line: str, separator: str) -> list[str]:
    """Return the cells of a row, without padding and quotes."""
    quoted = '"' in line and line.count('"') % 2 == 0
    cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True)) if quoted else line.split(separator)
    return [cell.strip().strip('"').strip() for cell in cells]


def column_names(header: Sequence[str]) -> list[str]:
    """Return a name for each column; columns without one are numbered, and so are repeated names."""
    names: list[str] = []
    for place, cell in enumerate(header, start=1):
        name, count = cell or f"unnamed {place}", 1
        while name in names:
            count += 1
            name = f"{cell} ({count})"
        names.append(name)
    return names


def numbers_columns(cells: Sequence[str]) -> bool:
    """Whether a row is the header that pandas writes for columns without names, beside its index: `,0,1`."""
    return len(cells) > 1 and list(cells) == ["", *map(str, range(len(cells) - 1))]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def has_decimal_comma(cell: str) -> bool:
    """Whether a cell holds a number like `0,5`."""
    return _COMMA_NUMBER.fullmatch(cell) is not None


def decimal_mark(rows: Sequence[str], separator: str) -> str:
    """Return the decimal mark of these rows: a comma where cells hold one and none a point.

    Commas alone are no separators of thousands: a training log without a single fraction is unlikely.
    """
    sample = rows[:DECIMAL_SAMPLE_ROWS]
    if separator == "," and not any('"' in row for row in sample):
        return "."
    cells = [cell for row in sample for cell in cells_of(row, separator)]
    if any("." in cell and is_number(cell) for cell in cells):
        return "."
    return "," if separator == ";" or any(map(has_decimal_comma, cells)) else "."
