"""Reads W&B's own file of a run, `run-*.wandb`, without W&B: what an offline run leaves, and an online one too.

In: the file. Out: a `RunHistory` with the run's name, settings and how it ended. Guarantees: steps are W&B's own, or
those of the metric that the script made the axis of all others; what W&B writes of not-a-number is one; where nothing
was logged but the console printed a training, that is read; what was lost of a damaged file is said.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from itertools import islice

from mlflow_stability.importers.assemble.history import history_of
from mlflow_stability.importers.assemble.log_content import LogContent
from mlflow_stability.importers.decode import opened, plain, shown_text
from mlflow_stability.importers.files.json_rows import number_in
from mlflow_stability.importers.files.leveldb_log import BLOCK, Losses, records_of
from mlflow_stability.importers.files.wire_format import fields_of, signed, zigzag
from mlflow_stability.importers.formats.text_log import TextLog
from mlflow_stability.importers.log_format import LogFormat, Opening, RecognisedBy
from mlflow_stability.importers.text.log_words import LogWordReader
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text import counted

_MARK = b":W&B"
_IDENTITY = 7  # the mark, a number of two bytes, a version
_HISTORY, _CONFIG, _METRIC, _OUTPUT, _RUN, _EXIT = 2, 5, 12, 13, 17, 18
_ITEM, _ITS_STEP = 1, 2
_KEY, _NESTED_KEY, _BOOLEAN, _INTEGER, _NUMBER, _TEXT, _JSON, _VALUE_JSON = 1, 2, 4, 5, 6, 7, 8, 16
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LONGEST_TEXT = 5000
_LONGEST_VALUE = 100_000  # a longer one is a histogram, a table or a picture
_MOST_PARAMS = 1000
_DEEPEST = 6
_LARGEST_WHOLE = 1e15
_ONE_BYTE = 0x7F  # the largest length that takes one byte
_ITEM_FOLLOWS = _ITEM << 3 | 2
_NAMED = frozenset({_KEY << 3 | 2, _NESTED_KEY << 3 | 2})
_JSON_FOLLOWS = bytes([(_VALUE_JSON << 3 | 2) & 0x7F | 0x80, _VALUE_JSON >> 4])


class _Run:
    """What the records of one run add up to."""

    def __init__(self) -> None:
        self.content = LogContent()
        self.told = LogWordReader()
        self.name = ""
        self.exit_code: int | None = None
        self._row = 0
        self._axis = ""

    def take(self, record: bytes) -> None:
        """One record."""
        for kind, wire, content in fields_of(record):
            if wire != 2 or not isinstance(content, bytes):
                continue
            if kind == _HISTORY:
                self._measured(content)
            elif kind == _OUTPUT:
                for line in _printed(content):
                    self.told.hear(line)
            elif kind == _CONFIG:
                self._set(content)
            elif kind == _RUN:
                self._is(content)
            elif kind == _METRIC:
                self._axis = _axis_of_all(content) or self._axis
            elif kind == _EXIT:
                self.exit_code = _whole(content)

    def _measured(self, history: bytes) -> None:
        values, rest = _plain_items(history)
        step = math.nan
        for kind, _, content in fields_of(history[rest:]):
            if kind == _ITEM and isinstance(content, bytes):
                values.update(_values(content))
            elif kind == _ITS_STEP and isinstance(content, bytes) and "_step" not in values:
                step = float(_whole(content))
        step, time = values.pop("_step", step), values.pop("_timestamp", 0.0)
        values.pop("_runtime", None)
        if self._axis:
            step = values.pop(self._axis, math.nan)
        self._row += 1
        self.content.add_row(self._row, values, step, time=time)
        if values and math.isfinite(step):
            self.told.value_came(int(max(-(2**53), min(step, 2**53))), self._row)

    def _set(self, config: bytes) -> None:
        for kind, _, content in fields_of(config):
            if kind == 1 and isinstance(content, bytes):
                name, value = _item(content)
                if not name.startswith("_wandb"):
                    told = islice(_settings(name, value), max(0, _MOST_PARAMS - len(self.content.params)))
                    self.content.params.update(told)

    def _is(self, run: bytes) -> None:
        fields = {kind: content for kind, _, content in fields_of(run) if isinstance(content, bytes)}
        self.name = _text(fields.get(8, b"")) or _text(fields.get(1, b"")) or self.name
        self._set(fields.get(4, b""))
        for kind, tag in ((1, "run_id"), (2, "entity"), (3, "project"), (6, "group"), (7, "job_type"), (9, "notes")):
            if fields.get(kind):
                self.content.tags[f"wandb.{tag}"] = _text(fields[kind])


def read_wandb_file(opening: Opening) -> list[RunHistory] | None:
    """The run in a W&B file."""
    if not opening.head.startswith(_MARK):
        return None
    run, losses = _Run(), Losses()
    for record in _records(opening, losses):
        run.take(record)
    content = run.content
    run.told.give(content)
    printed = not any(len(column) > 1 for column in content.columns.values())
    if printed:
        content = _read_from_console(opening, content)
    if run.exit_code is not None and not content.outcome:
        content.outcome = "finished" if run.exit_code == 0 else "crashed"
        content.outcome_detail = "" if run.exit_code == 0 else f"exit status {run.exit_code}"
    content.notes.extend(_lost(losses))
    return [history_of(content, opening.path, "wandb", name=run.name)]


def _records(opening: Opening, losses: Losses) -> Iterator[bytes]:
    with opened(opening.path) as file:
        file.read(_IDENTITY)
        yield from records_of(file, _IDENTITY, losses)


def _read_from_console(opening: Opening, found: LogContent) -> LogContent:
    """What the run printed, where it logged no curve."""
    log = TextLog(of_a_file=False)
    for record in _records(opening, Losses()):
        for kind, wire, content in fields_of(record):
            if kind == _OUTPUT and wire == 2 and isinstance(content, bytes):
                for line in _printed(content):
                    log.take(line)
    read, _ = log.finish()
    read.params, read.tags = found.params, found.tags
    if read.columns:
        read.notes.append("No metric logged to W&B has two or more values; these are from the printed output.")
    return read


def _lost(losses: Losses) -> Iterator[str]:
    if losses.damaged_blocks:
        blocks = counted(losses.damaged_blocks, "damaged block")
        at = f"{'at' if losses.damaged_blocks == 1 else 'the first at'} byte {losses.first_damage:,}"
        yield f"{blocks} of {BLOCK // 1024} KiB, {at}: data logged there is missing."
    if losses.cut:
        yield "The file ends within a record: the run was interrupted or is still writing."
    if losses.too_long:
        yield f"{counted(losses.too_long, 'record')} too long for metrics skipped."


def _printed(output: bytes) -> Iterator[str]:
    for kind, _, content in fields_of(output):
        if kind == 3 and isinstance(content, bytes):
            yield from map(plain, content.decode("utf-8", "replace").replace("\r", "\n").split("\n"))


def _whole(message: bytes) -> int:
    """The whole number that is a message's first field; what is 0 is not written at all."""
    return next((signed(content) for kind, _, content in fields_of(message) if kind == 1 and type(content) is int), 0)


def _axis_of_all(metric: bytes) -> str:
    """The metric that the script made the axis of all others: `define_metric("*", step_metric=NAME)`."""
    texts = {kind: content for kind, _, content in fields_of(metric) if isinstance(content, bytes)}
    return _text(texts.get(4, b"")) if texts.get(2) == b"*" else ""


def _plain_items(history: bytes) -> tuple[dict[str, float], int]:
    """The items at the beginning that are one name and one number as JSON, as nearly all are, and where others begin.

    It does what reading them field by field does, ten times faster.
    """
    values: dict[str, float] = {}
    place, end = 0, len(history)
    while place + 4 < end and history[place] == _ITEM_FOLLOWS:
        behind = place + 2 + history[place + 1]
        named = place + 4 + history[place + 3]
        if history[place + 2] not in _NAMED or named + 2 >= behind or behind > end or history[place + 1] > _ONE_BYTE:
            break
        if history[named : named + 2] != _JSON_FOLLOWS or named + 3 + history[named + 2] != behind:
            break
        try:
            values[history[place + 4 : named].decode()] = float(history[named + 3 : behind])
        except ValueError:
            break
        place = behind
    return values, place


def _values(item: bytes) -> Iterator[tuple[str, float]]:
    name, value = _item(item)
    if type(value) is float:
        yield name, value
    elif isinstance(value, dict) and "_type" not in value:
        yield from _numbers_in(value, name)


def _numbers_in(value: dict[str, object], prefix: str, depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, each in value.items():
        name = f"{prefix}.{key}"
        if type(each) in (int, float):
            yield name, number_in(each)
        elif isinstance(each, str) and each in _NOT_FINITE:
            yield name, _NOT_FINITE[each]
        elif isinstance(each, dict) and depth < _DEEPEST and "_type" not in each:
            yield from _numbers_in(each, name, depth + 1)


def _item(item: bytes) -> tuple[str, object]:
    """Name and value of a history's or a config's item; numbers are floating-point ones."""
    names: list[str] = []
    value: object = None
    for kind, wire, content in fields_of(item):
        if isinstance(content, int):
            value = float(zigzag(content)) if kind == _INTEGER else bool(content) if kind == _BOOLEAN else value
        elif kind in (_KEY, _NESTED_KEY) and content:
            names.append(_text(content))
        elif kind == _NUMBER and wire == 1:
            value = float(struct.unpack("<d", content)[0])
        elif kind == _TEXT:
            value = _NOT_FINITE.get(text := _text(content), text)
        elif kind in (_VALUE_JSON, _JSON):
            value = _parsed(content)
    return ".".join(names), value


def _text(content: bytes) -> str:
    return content[:_LONGEST_TEXT].decode("utf-8", "replace")


def _parsed(content: bytes) -> object:
    """A JSON value, numbers as floating-point ones; None for what is none, or too long to be a metric."""
    if len(content) > _LONGEST_VALUE:
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if type(found) in (int, float):
        return number_in(found)
    return _NOT_FINITE.get(found, found) if isinstance(found, str) else found


def _settings(name: str, value: object, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value and depth < _DEEPEST:
        for key, each in value.items():
            yield from _settings(f"{name}.{key}", each, depth + 1)
    elif name and value is not None:
        number = isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_WHOLE
        yield name, shown_text(str(int(value) if number else value))  # type: ignore[call-overload]


FORMAT = LogFormat(
    "W&B's .wandb files", RecognisedBy.MARK, read_wandb_file, frozenset({".wandb"}), frozenset({"files", "logs", "tmp"})
)
