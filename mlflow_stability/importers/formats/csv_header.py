"""Tells a table from other text by its first lines.

In: the lines with which a file begins. Out: what separates its cells, if it is a table: names first, numbers beneath.
A table without names is read where its first column counts; else a sentence says which line to add.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from itertools import islice, pairwise
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.decode import plain, shown_path
from mlflow_stability.importers.log_format import LogFormat, Opening, RecognisedBy
from mlflow_stability.vocabulary.run import RunHistory

_LINES_LOOKED_AT = 30
_FEWEST_ROWS = 5
"""Of fewer lines nobody can tell whether they are a table without names."""
_SEPARATORS = (",", ";", "\t", "|")
_VALUE = re.compile(r"[=:]\s*[-+.]?\d")  # a header names columns and holds no values: `step=1`


def read_table(opening: Opening) -> list[RunHistory] | None:
    """The run that a table tells of."""
    if opening.encoding is None:
        return None
    lines = list(islice(map(plain, opening.text.splitlines()), _LINES_LOOKED_AT))
    separator, header = separator_of(lines), None
    if separator is None:
        separator, header = _without_names(lines, opening.path)
    if separator is None:
        return None
    from mlflow_stability.importers.files.csv_table import read_csv  # pandas takes a third of a second to load

    return [read_csv(opening.path, opening.encoding, separator, header)]


def separator_of(lines: Iterable[str]) -> str | None:
    """What separates the cells of these lines, if they are a table: names first, numbers beneath."""
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    if len(lines) < 2:
        return None
    for mark in _SEPARATORS:
        header = cells_of(lines[0], mark)
        if len(header) < 2 or not any(header) or any(map(_is_no_name, header)):
            continue
        rows = [cells_of(line, mark) for line in lines[1:]]
        again = next((n for n, row in enumerate(rows) if n and row[0] == header[0]), len(rows))
        rows = rows[:again]
        fitting = [row for row in rows if len(row) == len(header)]
        if len(fitting) * 2 > len(rows) and sum(any(map(is_number, row)) for row in fitting) * 2 > len(fitting):
            return mark
    return None


def _without_names(lines: Iterable[str], path: Path) -> tuple[str | None, list[str] | None]:
    """What separates the cells of a table of numbers alone, and names for its columns; None where it is no table."""
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    for mark in _SEPARATORS:
        rows = [cells_of(line, mark) for line in lines]
        width = len(rows[0]) if rows else 0
        if (
            len(rows) < _FEWEST_ROWS
            or width < 2
            or any(len(row) != width or not all(map(is_number, row)) for row in rows)
        ):
            continue
        counted = [float(row[0]) for row in rows]
        if all(each.is_integer() for each in counted) and all(one < other for one, other in pairwise(counted)):
            return mark, ["step", *(f"column {place}" for place in range(2, width + 1))]
        names = ",".join(["step", "loss", *(f"metric_{place}" for place in range(1, width - 1))][:width])
        raise UnreadableLogError(
            f"{shown_path(path)} is a table of {width} columns of numbers without names, and the first does not count "
            f"steps. Add a first line that names them, such as `{names.replace(',', mark)}`."
        )
    return None, None


def cells_of(line: str, separator: str) -> list[str]:
    """The cells of a line, without what pads or quotes them."""
    quoted = '"' in line and line.count('"') % 2 == 0
    cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True)) if quoted else line.split(separator)
    return [cell.strip().strip('"').strip() for cell in cells]


def names_of(header: list[str]) -> list[str]:
    """A name for each column: those without one are numbered, and so are those whose name was there before."""
    names: list[str] = []
    for place, cell in enumerate(header, start=1):
        name, again = cell or f"unnamed {place}", 1
        while name in names:
            again += 1
            name = f"{cell} ({again})"
        names.append(name)
    return names


def _is_no_name(cell: str) -> bool:
    return is_number(cell) or _VALUE.search(cell) is not None


def is_number(cell: str) -> bool:
    """Whether a cell holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


FORMAT = LogFormat("CSV", RecognisedBy.FIRST_LINES, read_table, frozenset({".csv", ".tsv"}))
