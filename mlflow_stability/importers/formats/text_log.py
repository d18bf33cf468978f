"""Reads logs line by line: JSON lines, printed dictionaries, tables, names with numbers, and any mixture of them.

In: a text file. Out: a `RunHistory`. Guarantees: one pass with bounded memory; source code, banners and prose around
the log are no values: a line without a step counts only if lines like it come again as the training goes on. Of Keras's
progress bars, which show means over the epoch so far, those at the end of an epoch count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from mlflow_stability.importers.assemble.history import history_of
from mlflow_stability.importers.assemble.log_content import MOST_VALUES, LogContent
from mlflow_stability.importers.decode import (
    LOOKED_AT,
    blocks_of,
    has_decimal_commas,
    lines_of,
    text_of,
    with_points,
)
from mlflow_stability.importers.files.json_rows import json_line
from mlflow_stability.importers.log_format import LogFormat, Opening, RecognisedBy
from mlflow_stability.importers.text.line_blocks import (
    MOST_KINDS,
    LineBlocks,
    carried_on,
    line_blocks,
    may_be_read_in_blocks,
    stretches,
    values_of,
)
from mlflow_stability.importers.text.line_pattern import KnownLine, LinePatterns
from mlflow_stability.importers.text.log_line import LogLine
from mlflow_stability.importers.text.log_words import LogWordReader, says_skipped
from mlflow_stability.importers.text.loose_lines import LooseLines
from mlflow_stability.importers.text.overwritten import is_unfinished_bar
from mlflow_stability.importers.text.pair_line import held_out_in, pair_line, said_of
from mlflow_stability.importers.text.printed_lists import PrintedLists, has_loss_curve
from mlflow_stability.importers.text.table_lines import ColumnTable, KeyValueTable
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text import kinds_in_line

_UNKNOWN = float("nan")
_WORTH_A_BLOCK = 24
"""Fewer lines are kept sooner one by one."""
_SENTENCE_WORDS = (
    *("verflow", "nfinite", "skipping", "invalid", "abort", "stopping", "stop ", "crashed", "detected", "triggered"),
    *("diverge", "explo", "blown up", "blew up", "too high", "too large", "high grad", "large grad", "huge grad"),
    *("diversity", "bit usage", "bit_usage", "temperature is out", "temperature out"),
    *(f"{roll}{between}back" for roll in ("roll", "rolled", "rolling") for between in ("", " ", "_", "-")),
)
"""Words in small letters of lines that say more than their numbers. A search for each is eight times faster than one
regular expression for all."""
_COMPARED = re.compile(r"loss ?[:=] ?[\d.,e+-]+ ?(?:> ?\d|exceeds|is above)", re.IGNORECASE)
"""``Loss=8.2340 > 2.0x avg``."""
_NO_CURVE = re.compile(r"detected|triggered|skipp|collapse|infinite|restor|roll", re.IGNORECASE)
"""Names that are parts of a sentence: ``NaN loss detected at batch 1010``."""


class TextLog:
    """Takes a log line by line; ``of_a_file``: whether these are the lines that its reader counts."""

    def __init__(self, *, of_a_file: bool = True) -> None:
        self._gathered = LogContent()
        self._of_a_file = of_a_file
        self._loose = LooseLines()
        self._forms: Counter[str] = Counter()
        self._key_values, self._columns = KeyValueTable(), ColumnTable()
        self._patterns, self._told = LinePatterns(), LogWordReader()
        self._lists, self._bars = PrintedLists(), LogContent()
        self._step = self._epoch = _UNKNOWN
        self._row = self._number = 0
        self._in_blocks: dict[KnownLine, bool] = {}
        self._blocks_for: tuple[KnownLine, ...] = ()
        self._last_blocks: LineBlocks | None = None
        self._heading = ""

    def take(self, line: str) -> None:
        """One line."""
        self._number += 1
        read = self._patterns.read(line)
        if read is None:
            read = self._understood(line)
        more = _says_more(line)
        if more and read is not None and _is_said(line, read):
            read = None  # the numbers of a guard, which speaks of broken steps alone, are no curve
        if read is not None and is_unfinished_bar(line):
            self._row += 1
            self._gathered.at_line(self._row, self._number)
            self._bars.add_row(self._row, read.values, read.step, self._epoch)
        elif read is not None:
            self._keep(read)
        elif line.rstrip().endswith(":"):
            self._heading = held_out_in(line)
        if read is None or not read.has_step or more:
            self._told.hear(line, self._number)

    def take_block(self, block: str) -> None:
        """Many lines, each with its end: those of known kinds at once."""
        known = [each for each in self._patterns.known if self._holds_values_alone(each)]
        blocks = self._blocks(tuple(known[:MOST_KINDS]))
        if blocks is None:
            for line in block.split("\n")[:-1]:
                self.take(line)
            return
        rows = blocks.rows(block)
        for low, high in stretches(rows):
            if high - low < _WORTH_A_BLOCK or not self._keep_many(blocks, rows[low:high]):
                self._keep_each(blocks, rows[low:high], block, low)
            if high < len(rows):
                self.take(rows[high][-1][:-1])

    def _holds_values_alone(self, known: KnownLine) -> bool:
        answer = self._in_blocks.get(known)
        if answer is None:
            answer = self._in_blocks[known] = may_be_read_in_blocks(known, _is_no_mere_value)
        return answer and all(name in self._gathered.columns for name in known.names if not name.startswith("\0"))

    def _blocks(self, known: tuple[KnownLine, ...]) -> LineBlocks | None:
        if known != self._blocks_for:
            self._blocks_for, self._last_blocks = known, line_blocks(known)
        return self._last_blocks

    def _keep_each(self, blocks: LineBlocks, rows: Sequence[tuple[str, ...]], block: str, first: int) -> None:
        lines: list[str] = []
        for at, row in enumerate(rows, first):
            try:
                read = blocks.kind_of(row).known.filled(blocks.numbers(row))
            except ValueError:  # it has something like a number in the place of one: `loss -`
                lines = lines or block.split("\n")
                self.take(lines[at])
                continue
            self._number += 1
            self._keep(read)

    def _keep_many(self, blocks: LineBlocks, rows: Sequence[tuple[str, ...]]) -> bool:
        """Keep the numbers of lines of known kinds; False where they have to be kept one by one."""
        try:
            found = values_of(blocks, rows)
        except ValueError:
            return False
        if self._gathered.size + sum(len(places) for places, _ in found.columns.values()) > MOST_VALUES:
            return False  # what is thinned depends on when
        epochs = carried_on(found.epochs, self._epoch)
        for name, (places, values) in found.columns.items():
            of_these = self._row + 1 + places
            self._gathered.add_column(name, of_these, values, found.steps[places], epochs[places])
        self._gathered.at_line(self._row + 1, self._number + 1)
        self._gathered.count_all_of(found.totals[np.isfinite(found.totals)])
        self._number += len(rows)
        self._row += len(rows)
        self._epoch, self._step, self._heading = float(epochs[-1]), float(found.steps[-1]), ""
        self._forms["text"] += len(rows)
        self._told.value_came(_whole(self._step), self._row)
        return True

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

    def finish(self) -> tuple[LogContent, str]:
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
        if not self._of_a_file:
            self._gathered.forget_lines()
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
        self._gathered.at_line(self._row, self._number)
        if read.has_step:
            if read.total == read.total:
                self._gathered.count_of(read.total)
            self._told.value_came(_whole(read.step), self._row)
            self._gathered.add_row(self._row, read.values, read.step, self._epoch, read.time)
        else:
            self._told.line_without_step(read.values, self._row)
            self._loose.keep(self._row, read, self._step, self._epoch)


def _says_more(line: str) -> bool:
    lower = line.lower()
    for word in _SENTENCE_WORDS:
        if word in lower:
            return True
    return ("> " in lower or "exceeds" in lower or "is above" in lower) and _COMPARED.search(line) is not None


def _is_no_mere_value(line: str) -> bool:
    return _says_more(line) or "ETA" in line or "/step" in line


def _whole(step: float) -> int:
    return int(max(-(2**53), min(step, 2**53)))


def _is_said(line: str, read: LogLine) -> bool:
    """Whether the numbers of a line are part of a sentence about a finding, and not measured."""
    if says_skipped(line) and not any("loss" in name.lower() for name in read.values):
        return True
    # Without a step the numbers of such a line are those of its sentence: `Divergence warning: Loss=8.2 > 2.0x avg`.
    return bool(kinds_in_line(line)) and (
        not read.has_step or not read.values or any(map(_NO_CURVE.search, read.values))
    )


def read_text(opening: Opening) -> list[RunHistory] | None:
    """The run that any text tells of."""
    return None if opening.encoding is None else [read_text_log(opening.path, opening.encoding)]


def read_text_log(path: Path, encoding: str) -> RunHistory:
    """The run that a text file tells of."""
    log = TextLog()
    with text_of(path, encoding) as text:
        lines = lines_of(text)
        first = list(islice(lines, LOOKED_AT))
        if has_decimal_commas(first):
            for line in with_points(chain(first, lines)):
                log.take(line)
        else:
            for line in first:
                log.take(line)
            for block in blocks_of(text):
                log.take_block(block)
    content, form = log.finish()
    return history_of(content, path, form)


FORMAT = LogFormat(
    "text",
    RecognisedBy.NOTHING,
    read_text,
    frozenset({".log", ".txt", ".out", ".jsonl", ".ndjson", ".gz", ""}),
)
