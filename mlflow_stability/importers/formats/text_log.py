"""Reads logs line by line: JSON lines, printed dictionaries, tables, names with numbers, and any mixture of them.

In: a text file. Out: a `RunHistory`. Promised: one pass with bounded memory; source code, banners and prose around the
log are no values: a line without a step counts only if lines like it come again as the training goes on. Of Keras's
progress bars, which show means over the epoch so far, those at the end of an epoch count.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from mlflow_stability.importers.assemble.gathered import Gathered
from mlflow_stability.importers.assemble.history import history_of
from mlflow_stability.importers.decode import lines_of, text_of, with_points
from mlflow_stability.importers.files.json_rows import json_line
from mlflow_stability.importers.log_format import LogFormat, Opening, ToldBy
from mlflow_stability.importers.text.line_pattern import LinePatterns
from mlflow_stability.importers.text.log_line import LogLine
from mlflow_stability.importers.text.loose_lines import LooseLines
from mlflow_stability.importers.text.overwritten import is_unfinished_bar
from mlflow_stability.importers.text.pair_line import held_out_in, pair_line, said_of
from mlflow_stability.importers.text.printed_lists import PrintedLists, has_loss_curve
from mlflow_stability.importers.text.table_lines import ColumnTable, KeyValueTable
from mlflow_stability.importers.text.told_in_words import Told, says_skipped
from mlflow_stability.vocabulary.run.run_history import RunHistory
from mlflow_stability.vocabulary.text.foreign_names import said_in

_UNKNOWN = float("nan")
_SAYS_MORE = re.compile(
    r"verflow|onfinite|[Ss]kipping|[Ii]nvalid|[Aa]bort|[Ss]topping|[Dd]etected|DETECTED|[Tt]riggered|TRIGGERED|nfinite"
    r"|[Rr]oll(?:ed|ing)?[ _-]?back|ROLL"
)
_NO_CURVE = re.compile(r"detected|triggered|skipp|collapse|infinite|restor|roll", re.IGNORECASE)
"""Names that are parts of a sentence: ``NaN loss detected at batch 1010``."""


class TextLog:
    """Takes a log line by line."""

    def __init__(self) -> None:
        self._gathered = Gathered()
        self._loose = LooseLines()
        self._forms: Counter[str] = Counter()
        self._key_values, self._columns = KeyValueTable(), ColumnTable()
        self._patterns, self._told = LinePatterns(), Told()
        self._lists, self._bars = PrintedLists(), Gathered()
        self._step = self._epoch = _UNKNOWN
        self._row = self._number = 0
        self._heading = ""

    def take(self, line: str) -> None:
        """One line."""
        self._number += 1
        read = self._patterns.read(line)
        if read is None:
            read = self._understood(line)
        more = _SAYS_MORE.search(line) is not None
        if more and read is not None and _is_said(line, read):
            read = None  # the numbers of a guard, which speaks of broken steps alone, are no curve
        if read is not None and is_unfinished_bar(line):
            self._row += 1
            self._bars.add_row(self._row, read.values, read.step, self._epoch)
        elif read is not None:
            self._keep(read)
        elif line.rstrip().endswith(":"):
            self._heading = held_out_in(line)
        if read is None or not read.has_step or more:
            self._told.hear(line, self._number)

    def _understood(self, line: str) -> LogLine | None:
        """The values of a line of a kind that was not seen before."""
        if not line.strip():
            return None
        read = json_line(line) if "{" in line else None
        if read is not None:
            if not read.values and "[" in line:
                self._lists.take(line)
            return read
        in_table, done = self._key_values.take(line)
        if in_table or done is not None:
            return done
        row = self._columns.take(line)
        if row is not None:
            return row
        found = pair_line(line)
        if found is None:
            return None
        self._patterns.learn(found[1])
        return found[0]

    def finish(self) -> tuple[Gathered, str]:
        """Everything that was found, and the form that most of it had."""
        last = self._key_values.complete()
        if last is not None:
            self._keep(last)
        self._loose.join(self._gathered)
        self._lists.join(self._gathered)
        if not has_loss_curve(self._gathered):  # a training of one epoch
            self._gathered.take_over(self._bars)
        columns = self._gathered.columns
        begin = max(columns.values(), key=len).rows[0] if columns else 0
        for name in [name for name, column in columns.items() if len(column) == 1 and column.rows[0] < begin]:
            del columns[name]  # a banner's: `batch: 16384 seq=2048`
        self._told.give(self._gathered)
        return self._gathered, self._forms.most_common(1)[0][0] if self._forms else "text"

    def _keep(self, read: LogLine) -> None:
        if read.epoch == read.epoch:
            self._epoch = read.epoch
        if read.has_step:
            self._step = read.step
        if not read.values:
            return
        if self._heading and not read.has_step:  # `Test Error:` above `Avg loss: 0.5`
            read.values = said_of(read.values, self._heading)
        self._heading = ""
        self._forms[read.form] += 1
        self._row += 1
        if read.has_step:
            if read.total == read.total:
                self._gathered.count_of(read.total)
            self._told.value_came(int(max(-(2**53), min(read.step, 2**53))), self._row)
            self._gathered.add_row(self._row, read.values, read.step, self._epoch, read.time)
        else:
            self._told.line_without_step(read.values, self._row)
            self._loose.keep(self._row, read, self._step, self._epoch)


def _is_said(line: str, read: LogLine) -> bool:
    """Whether the numbers of a line are part of a sentence about a finding, and not measured."""
    if says_skipped(line) and not any("loss" in name.lower() for name in read.values):
        return True
    return bool(said_in(line)) and (not read.values or any(map(_NO_CURVE.search, read.values)))


def read_text(opening: Opening) -> list[RunHistory] | None:
    """The run that any text tells of."""
    return None if opening.encoding is None else [read_text_log(opening.path, opening.encoding)]


def read_text_log(path: Path, encoding: str) -> RunHistory:
    """The run that a text file tells of."""
    log = TextLog()
    with text_of(path, encoding) as text:
        for line in with_points(lines_of(text)):
            log.take(line)
    gathered, form = log.finish()
    return history_of(gathered, path, form)


FORMAT = LogFormat(
    "text",
    ToldBy.NOTHING,
    read_text,
    frozenset({".log", ".txt", ".out", ".jsonl", ".ndjson", ".gz", ""}),
)
