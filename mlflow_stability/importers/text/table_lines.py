"""Read printed tables: a `| key | value |` line for each number, or a header with rows of numbers beneath.

Names in groups (`rollout/` above `ep_rew_mean`) get the group's name in front.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlflow_stability.importers.field_names import is_epoch, step_rank
from mlflow_stability.importers.json_rows import log_row
from mlflow_stability.importers.log_content import LogLine
from mlflow_stability.vocabulary.text.metric_names import LOSSES, split_words

_RULE_CHARACTERS = frozenset("-+|=: \t")
_CLOCK = re.compile(r"\d+(?::\d+)+|\d+(?:\.\d+)?(?:[GMK]B?|[mu]?s|sec|min|h|s/it|it/s)")
_NO_VALUE = frozenset({"", "-", "--", "—", "N/A", "n/a", "NA", "None", "none", "null"})
_WIDE_GAP = re.compile(r"\s{2,}|\t")
_BOX_LINES = str.maketrans({"│": "|", "┃": "|", "║": "|", "┆": "|", "┊": "|"})
_MAX_COLUMNS = 60


class KeyValueTable:
    """Collects the lines of a table between two rules; the end of a log completes the last one."""

    def __init__(self) -> None:
        self._row: dict[str, object] = {}
        self._group = ""

    def take(self, line: str) -> tuple[bool, LogLine | None]:
        """Return whether the line belongs to a table, and the row that it completes."""
        if not self._row and "|" not in line:
            return False, None
        cells = line.strip().split("|")
        if len(cells) != 4 or cells[0] or cells[3]:
            return False, self.complete() if _RULE_CHARACTERS.issuperset(line) or "|" not in line else None
        key, value = cells[1].strip(), cells[2].strip()
        if _number(key) is not None or _is_header((key, value)):  # a table of two columns
            return False, self.complete()
        if key.endswith("/") and not value:
            self._group = key
            return True, None
        completed = None
        name = f"{self._group}{key}" if not key.startswith(self._group) else key
        if name in self._row:  # a table without a rule between its rows
            completed = self.complete()
        self._row[name] = value
        return True, completed

    def complete(self) -> LogLine | None:
        """Return the row as it is, and begin a new one."""
        row, self._row, self._group = self._row, {}, ""
        read = log_row(row)
        read.form = "key_value_table"
        return read if read.values else None


class ColumnTable:
    """Reads rows beneath the last header: `epoch  train_loss  valid_loss  time`."""

    def __init__(self) -> None:
        self._header: Sequence[str] = ()

    def take(self, line: str) -> LogLine | None:
        """Return the values of a row; None for any other line."""
        if not line.isascii():
            line = line.translate(_BOX_LINES)
        barred = line.count("|") > 2
        cells = [cell.strip(" *`\t") for cell in line.strip().strip("|").split("|")] if barred else line.split()
        columns = len(self._header)
        if len(cells) > columns > 0 and cells[columns - 1].endswith(":"):  # a progress bar behind the last column
            cells = [*cells[: columns - 1], cells[columns - 1][:-1]]
        if self._header and len(cells) == len(self._header):
            numbers = [_number(cell) for cell in cells]
            if all(
                number is not None or cell in _NO_VALUE or barred or _CLOCK.fullmatch(cell)
                for number, cell in zip(numbers, cells, strict=True)
            ):
                pairs = zip(self._header, numbers, strict=True)
                read = log_row({name: number for name, number in pairs if number is not None})
                read.form = "text"
                return read if read.values else None
        if line.startswith("#") and not barred:  # as `numpy.savetxt` writes a header
            line = line.lstrip("#")
            cells = line.split()
        wide_cells = [] if barred else _WIDE_GAP.split(line.strip())  # `Train Loss    Val Loss`
        tabs = [cell.strip() for cell in line.strip().split("\t")] if "\t" in line else []
        header = next((names for names in (wide_cells, cells) if _is_header(names)), None)
        header = tabs if header is None and _is_header_of_losses(tabs) else header
        if header is not None:
            self._header = header
        return None


def _is_header(cells: Sequence[str]) -> bool:
    if (
        not 2 <= len(cells) <= _MAX_COLUMNS
        or len(set(cells)) < len(cells)
        or any(_number(cell) is not None for cell in cells)
    ):
        return False
    counts = any(is_epoch(cell) or step_rank(cell) >= 0 for cell in cells)
    return counts and any(LOSSES & {word.lower() for word in split_words(cell)} or "box" in cell for cell in cells)


def _is_header_of_losses(cells: Sequence[str]) -> bool:
    """Whether these are names of columns without a count of steps: `Learning Rate`, `Train Loss`, `Valid Loss`."""
    losses = sum(not LOSSES.isdisjoint(word.lower() for word in split_words(cell)) for cell in cells)
    return losses >= 2 and len(set(cells)) == len(cells) and not any(_number(cell) is not None for cell in cells)


def _number(cell: str) -> float | None:
    count, of, _ = cell.partition("/")  # `3/20`
    try:
        return float(count if of and cell.replace("/", "").isdigit() else cell.removesuffix("%"))
    except ValueError:
        return None
