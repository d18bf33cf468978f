"""Read logs line by line: JSON lines, printed dictionaries, tables, names with numbers, and any mixture of them.

One pass with bounded memory. Source code, banners and prose around the log are no values: a line without a step counts
only if lines like it are repeated as the training goes on. Of Keras's progress bars, which show means over the epoch so
far, those at the end of an epoch count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from mlflow_stability.importers import log_content
from mlflow_stability.importers.doubts import LineKinds
from mlflow_stability.importers.field_names import is_epoch, step_rank
from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.json_rows import json_line, log_row, number_in, parse_value
from mlflow_stability.importers.log_content import Column, LogContent, LogLine
from mlflow_stability.importers.log_format import LogFile, LogFormat, RecognisedBy
from mlflow_stability.importers.log_text import finished_bar, is_unfinished_bar, lines_of, open_text, with_points
from mlflow_stability.importers.text.messages import MessageReader, says_skipped
from mlflow_stability.importers.text.pair_line import LinePatterns, held_out_in, name_split, pair_line
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.foreign_names import kinds_in_line
from mlflow_stability.vocabulary.text.metric_names import LOSSES, metric_meanings, split_words

MAX_SHAPES = 1000  # kinds of lines without a step that are distinguished
MIN_RESULTS = 5  # minimum number of lines with a reward or an accuracy, where no other line has a value
MANY_TIMES = 5  # how much more often lines with a step must log a metric for those without one to be summaries
_RULE_CHARACTERS = frozenset("-+|=: \t")
_CLOCK = re.compile(r"\d+(?::\d+)+|\d+(?:\.\d+)?(?:[GMK]B?|[mu]?s|sec|min|h|s/it|it/s)")
_NO_VALUE = frozenset({"", "-", "--", "—", "N/A", "n/a", "NA", "None", "none", "null"})
_WIDE_GAP = re.compile(r"\s{2,}|\t")
_BOX_LINES = str.maketrans({"│": "|", "┃": "|", "║": "|", "┆": "|", "┊": "|"})
_MAX_COLUMNS = 60
_UNKNOWN = float("nan")
_SENTENCE_WORDS = (
    *("verflow", "nfinite", "skipping", "invalid", "abort", "stopping", "stop ", "crashed", "detected", "triggered"),
    *("diverge", "explo", "blown up", "blew up", "too high", "too large", "high grad", "large grad", "huge grad"),
    *("diversity", "bit usage", "bit_usage", "temperature is out", "temperature out"),
    *(f"{roll}{between}back" for roll in ("roll", "rolled", "rolling") for between in ("", " ", "_", "-")),
)
"""Words in small letters of lines that say more than their numbers. A search for each is eight times faster than one
regular expression for all."""
_COMPARED = re.compile(r"loss ?[:=] ?[\d.,e+-]+ ?(?:> ?\d|exceeds|is above)", re.IGNORECASE)  # `Loss=8.2340 > 2.0x avg`
_IMPROVED = re.compile(
    r"(?:^|[\s:])Metric \S+ improved\b"
    r"|\b(?:improved?|(?:de|in)creased?)\b.{1,40}?(?: to |\s*(?:-+>|=>|→)\s*)[-+]?[\d.]"
)
"""A message about the best validation so far: its numbers are gains, or repeat what was logged."""
_RESULTS = re.compile(r"(?:^|[^a-z])(?:reward|return|score|accuracy|acc)s?(?:$|[^a-z])", re.IGNORECASE)
"""Names of what a training without printed losses is judged by."""
_FOLD = re.compile(r"(?:^|\W)fold[ _:#-]*(\d+)\b(?!\.\d)", re.IGNORECASE)
"""A fold of a cross-validation, which is another training."""
_EVALUATION_BEGINS = re.compile(r"(?:begin|start)\w*\W*$", re.IGNORECASE)
"""The end of a line above the numbers of an evaluation: `Eval begin...`."""
_SENTENCE_NAMES = re.compile(r"detected|triggered|skipp|collapse|infinite|restor|roll", re.IGNORECASE)
"""Names that are parts of a sentence: `NaN loss detected at batch 1010`."""


class KeyValueTable:
    """Collects the lines `| key | value |` of a table between two rules; the end of a log completes the last one.

    Names in groups (`rollout/` above `ep_rew_mean`) get the group's name in front.
    """

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
        name = f"{self._group}{key}" if not key.startswith(self._group) else key
        completed = self.complete() if name in self._row else None  # a table without a rule between its rows
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


class LooseLines:
    """Lines without a step, by the names in them.

    A line counts if lines like it are repeated as the training goes on, or if there is no other loss; a listing of
    source code, a banner or a last evaluation does not.
    """

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, ...], LogContent] = {}
        self._size = 0

    def keep(self, row: int, read: LogLine, step: float, epoch: float) -> None:
        """Keep a line with the last step and epoch before it, unless there are too many kinds of lines."""
        own_epoch = "epoch" if read.epoch == read.epoch else ""
        shape = (own_epoch, *read.values)
        if shape not in self._shapes and len(self._shapes) >= MAX_SHAPES:
            return
        self._shapes.setdefault(shape, LogContent()).add_row(row, read.values, step, epoch, read.time)
        self._size += len(read.values)
        if self._size > log_content.MAX_VALUES:
            self._make_room()

    def join(self, log: LogContent) -> None:
        """Add the lines that count to those that name their step."""
        has_loss = has_loss_curve(log)
        with_step = {name: len(column) for name, column in log.columns.items()}
        for shape, lines in self._shapes.items():
            longest = max(lines.columns.values(), key=len)
            only_loss = not has_loss and len(longest) >= 3 and _any_loss(lines.columns)
            only_results = not with_step and len(longest) >= MIN_RESULTS and any(map(_RESULTS.search, lines.columns))
            if only_loss or only_results or _recurs(longest):
                for name, column in list(lines.columns.items()):
                    # What lines that name their step log much more often is a summary; not so what is not finite.
                    if with_step.get(name, 0) >= MANY_TIMES * len(column) and np.isfinite(column.values).all():
                        del lines.columns[name]
                    elif shape[0] and column.epochs[0] > 1 and column.epochs.count(column.epochs[0]) == len(column):
                        log.doubts[name] = (
                            f"all {len(column):,} values are of epoch {column.epochs[0]:g}, "
                            "as the results of several trainings are"
                        )
                log.merge(lines)

    def _make_room(self) -> None:
        """Drop lines that do not count yet; of the others keep the extremes."""
        self._shapes = {
            shape: lines
            for shape, lines in self._shapes.items()
            if _recurs(max(lines.columns.values(), key=len)) or _any_loss(lines.columns)
        }
        for lines in self._shapes.values():
            lines.thin()
        self._size = sum(lines.size for lines in self._shapes.values())


def _recurs(column: Column) -> bool:
    """Whether lines are repeated as the training goes on, and not many at one moment."""
    for counter in (column.epochs, column.steps):
        counts = np.array(counter)
        changes = np.count_nonzero(np.diff(counts[np.isfinite(counts)]))  # in each of several trainings again
        if changes >= 1 and (changes + 1) * 2 >= len(column):
            return True
    return False


class PrintedLists:
    """Histories that a log prints as a whole: `history: {'loss': [2.3, 1.9], 'val_loss': [2.5, 2.4]}`.

    The longest counts where the log has no curve of a loss otherwise: most who print their history at the end have
    printed each epoch before.
    """

    def __init__(self) -> None:
        self._longest: dict[str, list[object]] = {}

    def take(self, line: str) -> None:
        """Read a line that holds a dictionary without numbers of its own."""
        value = parse_value(line[line.find("{") : line.rfind("}") + 1])
        lists = {
            name: items
            for name, items in (value.items() if isinstance(value, dict) else ())
            if isinstance(items, list) and len(items) > 1 and all(type(item) in (int, float) for item in items)
        }
        if sum(map(len, lists.values())) > sum(map(len, self._longest.values())):
            self._longest = lists

    def join(self, log: LogContent) -> None:
        """Add the longest history to a log without a loss."""
        if not self._longest or has_loss_curve(log) or not _any_loss(self._longest):
            return
        for name, values in self._longest.items():
            numbers = np.array([number_in(value) for value in values], np.float64)
            log.add_column(name, np.arange(len(values), dtype=np.int64), numbers)
        log.rows_are_lines = False


def has_loss_curve(log: LogContent) -> bool:
    """Whether a log has a loss with two values or more."""
    return _any_loss(name for name, column in log.columns.items() if len(column) > 1)


def _any_loss(names: Iterable[str]) -> bool:
    return any(meaning.quantity in ("loss", "val_loss") for meaning in metric_meanings(names).values())


class TextLog:
    """Reads a log line by line; `of_a_file`: line numbers are those of a file."""

    def __init__(self, *, of_a_file: bool = True) -> None:
        self._content = LogContent(rows_are_lines=of_a_file)
        self._loose = LooseLines()
        self._forms: Counter[str] = Counter()
        self._key_values, self._columns = KeyValueTable(), ColumnTable()
        self._patterns, self._messages = LinePatterns(), MessageReader()
        self._lists, self._bars, self._kinds = PrintedLists(), LogContent(), LineKinds()
        self._step = self._epoch = _UNKNOWN
        self._line_number = 0
        self._fold = ""  # that of the last line that names one
        self._epoch_begun = False  # whether an epoch was named since Keras's last bar at its end
        self._bar_length = ""
        self._heading = ""  # word for held-out data in the heading above: `Test Error:`
        self._evaluated = ""  # the same, while steps are those of an evaluation
        self._trained = _UNKNOWN  # the last step before the evaluation

    def take(self, line: str) -> None:
        self._line_number += 1
        if ("old" in line or "OLD" in line) and (fold := _FOLD.search(line)) and fold[1] != self._fold:
            self._fold = fold[1]
            self._content.starts.append(self._line_number)
        read = self._patterns.read(line) or self._read_unknown(line)
        is_sentence = _is_sentence(line)
        if is_sentence and read is not None and _belongs_to_sentence(line, read):
            read = None  # numbers of a guard that speaks of broken steps alone are no curve
        names_change = "improve" in line or "crease" in line
        if read is not None and not read.has_step and names_change and _IMPROVED.search(line):
            read = None
        if read is not None and is_unfinished_bar(line):
            self._bars.add_row(self._line_number, read.values, read.step, self._epoch)
        elif read is not None:
            if "/step" in line:
                self._note_evaluation(line, read)
            self._keep(read)
        elif line.rstrip().endswith(":"):
            self._heading = held_out_in(line)
        elif _EVALUATION_BEGINS.search(line) and held_out_in(line):
            self._evaluated, self._trained = held_out_in(line), self._step
        if read is None or not read.has_step or not read.values or is_sentence:
            self._messages.read(line, self._line_number)

    def _note_evaluation(self, line: str, read: LogLine) -> None:
        """Name the values of a Keras bar of another length than the epochs' for test data: `model.evaluate` drew it."""
        length = finished_bar(line)
        if self._epoch_begun or not self._bar_length or self._epoch != self._epoch:
            self._bar_length, self._epoch_begun = length or self._bar_length, False
        elif length and length != self._bar_length:
            read.values = {name_split(name, "test"): value for name, value in read.values.items()}

    def _read_unknown(self, line: str) -> LogLine | None:
        """Return the values of a line of a kind that was not seen before."""
        if not line.strip():
            return None
        read = json_line(line) if "{" in line else None
        if read is not None:
            if not read.values and "[" in line:
                self._lists.take(line)
            clock = None if read.has_step or read.epoch == read.epoch else pair_line(line[: line.index("{")])
            if clock is not None and not clock[0].values:  # `epoch: 1 logs: {'loss': 0.4}`
                read.step, read.epoch = clock[0].step, clock[0].epoch
            return read
        in_table, completed = self._key_values.take(line)
        if in_table or completed is not None:
            return completed
        row = self._columns.take(line)
        if row is not None:
            return row
        pairs = pair_line(line)
        if pairs is None:
            return None
        self._patterns.learn(pairs[1])
        return pairs[0]

    def finish(self) -> tuple[LogContent, str]:
        """Return everything in the log, and the form of most of its lines."""
        last = self._key_values.complete()
        if last is not None:
            self._line_number += 1  # the last line may have completed another row
            self._keep(last)
        self._loose.join(self._content)
        self._lists.join(self._content)
        if not has_loss_curve(self._content):  # a training of one epoch
            self._content.merge(self._bars)
        columns = self._content.columns
        begin = max(columns.values(), key=len).rows[0] if columns else 0
        for name in [name for name, column in columns.items() if len(column) == 1 and column.rows[0] < begin]:
            del columns[name]  # of a banner: `batch: 16384 seq=2048`
        self._content.doubts.update(self._kinds.doubts({name: len(column) for name, column in columns.items()}))
        self._messages.add_to(self._content)
        return self._content, self._forms.most_common(1)[0][0] if self._forms else "text"

    def _keep(self, read: LogLine) -> None:
        if not read.step < self._trained:  # a line without a step, or the training goes on
            self._evaluated = ""
        if read.epoch == read.epoch:
            self._epoch, self._epoch_begun = read.epoch, True
        if read.has_step:
            self._step = read.step
        if not read.values:
            return
        if self._evaluated:
            read.values = {name_split(name, self._evaluated): value for name, value in read.values.items()}
        if self._heading and not read.has_step:  # `Test Error:` above `Avg loss: 0.5`
            read.values = {name_split(name, self._heading): value for name, value in read.values.items()}
        self._heading = ""
        self._kinds.note(read.words, read.values)
        self._forms[read.form] += 1
        if read.has_step:
            if read.total == read.total:
                self._content.count_total(read.total)
            self._messages.note_step(read.step, self._line_number)
            self._content.add_row(self._line_number, read.values, read.step, self._epoch, read.time)
        else:
            self._messages.note_values(read.values, self._line_number)
            self._loose.keep(self._line_number, read, self._step, self._epoch)


def _is_sentence(line: str) -> bool:
    """Whether a line says more than its numbers."""
    lower = line.lower()
    for word in _SENTENCE_WORDS:
        if word in lower:
            return True
    return ("> " in lower or "exceeds" in lower or "is above" in lower) and _COMPARED.search(line) is not None


def _belongs_to_sentence(line: str, read: LogLine) -> bool:
    """Whether the numbers of a line are part of a sentence about a finding, and not measured."""
    if says_skipped(line) and not any("loss" in name.lower() for name in read.values):
        return True
    # Without a step the numbers of the line are those of its sentence: `Divergence warning: Loss=8.2 > 2.0x avg`.
    names_finding = any(map(_SENTENCE_NAMES.search, read.values))
    return bool(kinds_in_line(line)) and (not read.has_step or not read.values or names_finding)


def read_text(log_file: LogFile) -> list[RunHistory] | None:
    """Return the run in any text; None for a binary file."""
    if log_file.encoding is None:
        return None
    log = TextLog()
    with open_text(log_file.path, log_file.encoding) as text:
        for line in with_points(lines_of(text)):
            log.take(line)
    content, form = log.finish()
    return [history_of(content, log_file.path, form)]


FORMAT = LogFormat(
    "text",
    RecognisedBy.NOTHING,
    read_text,
    frozenset({".log", ".txt", ".out", ".jsonl", ".ndjson", ".gz", ""}),
)
