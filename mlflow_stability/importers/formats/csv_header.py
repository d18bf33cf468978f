"""Recognise tables by their first lines: names first, numbers beneath; the names may be a comment, `# step,loss`.

A table without names is read where its first column counts, or where the name of its file is that of a loss; else an
error says which line to add. A table of one column is read where its name is that of a known quantity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.csv_rows import (
    NO_VALUE,
    cells_of,
    column_names,
    has_decimal_comma,
    is_number,
    numbers_columns,
    rows_of,
)
from mlflow_stability.importers.field_names import is_epoch, loss_of_file, step_rank
from mlflow_stability.importers.log_format import LogFile, LogFormat, RecognisedBy
from mlflow_stability.importers.log_text import clean_line, printable_path
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

_SAMPLE_LINES = 30
_MIN_NAMELESS_ROWS = 5
_SEPARATORS = (",", ";", "\t", "|")
_ALSO_BETWEEN_NUMBERS = (" ", ":")
_VALUE = re.compile(r"[=:]\s*[-+.]?\d")  # a line of values, `step=1`; but `mAP_0.5:0.95` and `Unnamed: 0` are names


def read_table(log_file: LogFile) -> list[RunHistory] | None:
    if log_file.encoding is None:
        return None
    head = log_file.text.splitlines()
    quoted = any('"' in line for line in head[:_SAMPLE_LINES])  # then a row may have several lines
    lines = list(map(clean_line, head if quoted else head[:_SAMPLE_LINES]))
    separator, names, made_up = separator_of(lines), None, False
    if separator is None:
        separator, names = _names_in_a_comment(lines)
    if separator is None:
        separator, names = _without_names(lines, log_file.path)
        made_up = True
    if separator is None and _is_one_named_column(lines):
        separator, made_up = ",", False
    if separator is None:
        return None
    from mlflow_stability.importers.csv_table import read_csv  # pandas takes a third of a second to load

    return read_csv(log_file.path, log_file.encoding, separator, names, made_up=made_up)


def separator_of(lines: Iterable[str]) -> str | None:
    """Return the separator of the cells, if these lines are a table: names first, numbers beneath."""
    for mark in _SEPARATORS:
        header, *rows = [cells_of(row, mark) for _, row in islice(rows_of(lines, mark), _SAMPLE_LINES)] or [[]]
        if not rows or len(header) < 2 or not any(header) or any(map(is_number, header)):
            continue
        repeated = next((n for n, row in enumerate(rows) if n and row[0] == header[0]), len(rows))
        rows = rows[:repeated]
        fitting = [row for row in rows if len(row) == len(header) or (len(row) == len(header) + 1 and not row[-1])]
        numbers = sum(any(map(_holds_number, row)) for row in fitting)
        # What looks like a value is a name if there are plain numbers beneath it.
        value_like = [place for place, cell in enumerate(header) if _VALUE.search(cell)]
        beneath = [[row[place] for row in fitting] for place in value_like]
        are_names = len(value_like) < len(header) and all(
            sum(_holds_number(cell) or cell in NO_VALUE for cell in cells) * 2 > len(cells) for cells in beneath
        )
        if len(fitting) * 2 > len(rows) and numbers * 2 > len(fitting) and are_names:
            return mark
    return None


def _holds_number(cell: str) -> bool:
    return is_number(cell) or has_decimal_comma(cell)


def _names_in_a_comment(lines: Sequence[str]) -> tuple[str | None, list[str] | None]:
    """Return separator and names where the last comment above the first row names the columns, as `numpy.savetxt`."""
    first = next((place for place, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    comment = next((line.lstrip("#").strip() for line in reversed(lines[:first]) if line.strip()), "")
    separator = separator_of([comment, *lines[first:]]) if comment else None
    names = column_names(cells_of(comment, separator)) if separator else []
    counts = any(is_epoch(name) or step_rank(name) >= 0 for name in names)
    # Without known names it is prose: `# second try, v2`.
    if counts or any(meaning.is_known for meaning in metric_meanings(names).values()):
        return separator, names
    return None, None


def _is_one_named_column(lines: Iterable[str]) -> bool:
    name, *numbers = [line.strip() for line in lines if line.strip()] or [""]
    meaning = metric_meanings([name])[name]
    return meaning.is_known and len(numbers) >= _MIN_NAMELESS_ROWS and all(map(is_number, numbers))


def _without_names(lines: Iterable[str], path: Path) -> tuple[str | None, list[str] | None]:
    """Return separator and made-up names for a table of numbers alone; None where it is no table."""
    lines = [line for line in lines if line.strip()]
    comments = [line for line in lines if line.startswith("#")]  # which may name the columns for the reader of text
    lines = [line for line in lines if not line.startswith("#")][:_SAMPLE_LINES]
    if len(lines) >= _MIN_NAMELESS_ROWS and all(is_number(line.strip()) for line in lines):
        name = loss_of_file(path.stem)
        return ("," if name else None), [name]
    for mark in (*_SEPARATORS, *(() if comments else _ALSO_BETWEEN_NUMBERS)):
        rows = [cells_of(line, mark) for line in lines]
        rows = rows[1:] if rows and numbers_columns(rows[0]) else rows
        width = len(rows[0]) if rows else 0
        if len(rows) < _MIN_NAMELESS_ROWS or width < 2:
            continue
        if any(len(row) != width or not all(map(is_number, row)) for row in rows):
            continue
        first_column = [float(row[0]) for row in rows]
        rises = all(before < after for before, after in pairwise(first_column))
        if rises and all(number.is_integer() for number in first_column):
            return mark, ["step", *(f"column {place}" for place in range(2, width + 1))]
        if mark in _ALSO_BETWEEN_NUMBERS:
            continue
        if loss := loss_of_file(path.stem):
            return mark, [f"{loss}_{place}" for place in range(1, width + 1)]
        names = ["step", "loss", *(f"metric_{place}" for place in range(1, width - 1))][:width]
        raise UnreadableLogError(
            f"{printable_path(path)} is a table of {width} columns of numbers without names, and the first does not "
            f"count steps. Add a first line that names them, such as `{mark.join(names)}`."
        )
    return None, None


FORMAT = LogFormat("CSV", RecognisedBy.FIRST_LINES, read_table, frozenset({".csv", ".tsv"}))
