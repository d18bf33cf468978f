"""Tells a table from other text by its first lines.

In: the lines with which a file begins. Out: what separates its cells, if it is a table: names first, numbers beneath;
the names may stand in a comment, `# step,loss`.
A table without names is read where its first column counts; else a sentence says which line to add.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.assemble.step_names import is_epoch, step_rank
from mlflow_stability.importers.decode import plain, shown_path
from mlflow_stability.importers.files.csv_rows import rows_of
from mlflow_stability.importers.log_format import LogFormat, Opening, RecognisedBy
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text import metric_meanings

_LINES_LOOKED_AT = 30
_FEWEST_ROWS = 5
"""Of fewer lines nobody can tell whether they are a table without names."""
_SEPARATORS = (",", ";", "\t", "|")
_VALUE = re.compile(r"[=:]\s*[-+.]?\d")  # a line of values, `step=1`; but `mAP_0.5:0.95` and `Unnamed: 0` are names
_WITH_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")
_DECIMALS_LOOKED_AT = 50
NOT_LOGGED = ["", "None", "none", "null", "NULL", "NA", "N/A", "n/a", "-", "--", "<NA>"]
"""What a cell says that has no value."""


def read_table(opening: Opening) -> list[RunHistory] | None:
    """The runs that a table tells of."""
    if opening.encoding is None:
        return None
    head = opening.text.splitlines()
    quoted = any('"' in line for line in head[:_LINES_LOOKED_AT])  # then a row may have several lines
    lines = list(map(plain, head if quoted else head[:_LINES_LOOKED_AT]))
    separator, names, made_up = separator_of(lines), None, False
    if separator is None:
        separator, names = _names_in_a_comment(lines)
    if separator is None:
        separator, names = _without_names(lines, opening.path)
        made_up = True
    if separator is None:
        return None
    from mlflow_stability.importers.files.csv_table import read_csv  # pandas takes a third of a second to load

    return read_csv(opening.path, opening.encoding, separator, names, made_up=made_up)


def separator_of(lines: Iterable[str]) -> str | None:
    """What separates the cells of these lines, if they are a table: names first, numbers beneath."""
    for mark in _SEPARATORS:
        header, *rows = [cells_of(row, mark) for _, row in islice(rows_of(lines, mark), _LINES_LOOKED_AT)] or [[]]
        if not rows or len(header) < 2 or not any(header) or any(map(is_number, header)):
            continue
        again = next((n for n, row in enumerate(rows) if n and row[0] == header[0]), len(rows))
        rows = rows[:again]
        fitting = [row for row in rows if len(row) == len(header) or (len(row) == len(header) + 1 and not row[-1])]
        numbers = sum(any(map(_holds_number, row)) for row in fitting)
        if len(fitting) * 2 > len(rows) and numbers * 2 > len(fitting) and _names_columns(header, fitting):
            return mark
    return None


def _names_in_a_comment(lines: Sequence[str]) -> tuple[str | None, list[str] | None]:
    """The same where the last comment above the first row names the columns, as `numpy.savetxt` writes it."""
    first = next((place for place, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    said = next((line.lstrip("#").strip() for line in reversed(lines[:first]) if line.strip()), "")
    separator = separator_of([said, *lines[first:]]) if said else None
    names = names_of(cells_of(said, separator)) if separator else []
    telling = any(is_epoch(name) or step_rank(name) >= 0 for name in names)
    if telling or any(each.known for each in metric_meanings(names).values()):  # else it is prose: `# second try, v2`
        return separator, names
    return None, None


def _without_names(lines: Iterable[str], path: Path) -> tuple[str | None, list[str] | None]:
    """What separates the cells of a table of numbers alone, and names for its columns; None where it is no table."""
    lines = [line for line in lines if line.strip() and not line.startswith("#")][:_LINES_LOOKED_AT]
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


def _names_columns(header: list[str], rows: list[list[str]]) -> bool:
    """Whether the first line holds no values: what looks like one is a name where plain numbers stand beneath it."""
    looks = [place for place, cell in enumerate(header) if _VALUE.search(cell)]
    return len(looks) < len(header) and all(
        sum(_holds_number(row[place]) or row[place] in NOT_LOGGED for row in rows) * 2 > len(rows) for place in looks
    )


def _holds_number(cell: str) -> bool:
    return is_number(cell) or _WITH_COMMA.fullmatch(cell) is not None


def decimal_of(rows: Sequence[str], separator: str) -> str:
    """What sets decimals apart in the cells of these rows.

    A comma where cells hold one and none a point: thousands alone, without a single fraction, are no training log.
    """
    if separator == "," and not any('"' in row for row in rows[:_DECIMALS_LOOKED_AT]):
        return "."
    cells = [cell for row in rows[:_DECIMALS_LOOKED_AT] for cell in cells_of(row, separator)]
    if any("." in cell and is_number(cell) for cell in cells):
        return "."
    return "," if separator == ";" or any(map(_WITH_COMMA.fullmatch, cells)) else "."


def is_number(cell: str) -> bool:
    """Whether a cell holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


FORMAT = LogFormat("CSV", RecognisedBy.FIRST_LINES, read_table, frozenset({".csv", ".tsv"}))
