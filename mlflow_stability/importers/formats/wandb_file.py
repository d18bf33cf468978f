"""Read W&B's own file of a run, `run-*.wandb`, without W&B: what an offline run leaves, and an online one too.

Steps are W&B's own, or those of the metric that the script made the axis of all others. Where nothing was logged but
the console printed a training, that is read. What a damaged file has lost becomes a note.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from mlflow_stability.importers.field_names import is_epoch
from mlflow_stability.importers.formats.text_log import TextLog
from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.json_rows import number_in
from mlflow_stability.importers.log_content import LogContent
from mlflow_stability.importers.log_format import LogFile, LogFormat, RecognisedBy
from mlflow_stability.importers.log_text import clean_line, open_bytes, printable
from mlflow_stability.importers.text.messages import MessageReader
from mlflow_stability.importers.wire_format import fields_of, signed, submessages, zigzag
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.phrases import counted

_MARK = b":W&B"
_FILE_HEADER_BYTES = 7  # the mark, a number of two bytes, a version
_BLOCK_BYTES = 32_768
_MAX_RECORD_BYTES = 64 * 1024 * 1024  # a longer one is a picture or a table
_PIECE_HEADER_BYTES = 7  # checksum, length of two bytes, kind
_LOST, _WHOLE, _FIRST, _LAST = 0, 1, 2, 4
_CHECKSUM_SEEDS = {kind: zlib.crc32(bytes([kind])) for kind in (_WHOLE, _FIRST, 3, _LAST)}

# Numbers of protobuf fields in W&B's records.
_HISTORY, _CONFIG, _METRIC, _OUTPUT, _RUN, _EXIT = 2, 5, 12, 13, 17, 18
_ITEM, _STEP = 1, 2
_KEY, _NESTED_KEY, _BOOLEAN, _INTEGER, _NUMBER, _TEXT, _JSON, _VALUE_JSON = 1, 2, 4, 5, 6, 7, 8, 16
_RUN_TAGS = {1: "run_id", 2: "entity", 3: "project", 6: "group", 7: "job_type", 9: "notes"}
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_MAX_TEXT_BYTES = 5000
_MAX_VALUE_BYTES = 100_000  # a longer one is a histogram, a table or a picture
_MAX_PARAMS = 1000
_MAX_DEPTH = 6
_MAX_INTEGER = 1e15
_MAX_ONE_BYTE_LENGTH = 0x7F
_ITEM_TAG = _ITEM << 3 | 2
_KEY_TAGS = frozenset({_KEY << 3 | 2, _NESTED_KEY << 3 | 2})
_VALUE_JSON_TAG = bytes([(_VALUE_JSON << 3 | 2) & 0x7F | 0x80, _VALUE_JSON >> 4])


def read_wandb_file(log_file: LogFile) -> list[RunHistory] | None:
    """Return the run in a W&B file; None for another file."""
    if not log_file.head.startswith(_MARK):
        return None
    run, damage = _Run(), _Damage()
    for record in _records(log_file, damage):
        run.add(record)
    content = run.content
    run.messages.add_to(content)
    if not any(len(column) > 1 for column in content.columns.values()):
        content = _console_content(log_file, content)
    if run.exit_code is not None and not content.outcome:
        content.outcome = "finished" if run.exit_code == 0 else "crashed"
        content.outcome_detail = "" if run.exit_code == 0 else f"exit status {run.exit_code}"
    content.notes.extend(damage.notes())
    return [history_of(content, log_file.path, "wandb", name=run.name)]


@dataclass(slots=True)
class _Damage:
    """What of a file could not be read."""

    blocks: int = 0
    first_byte: int = 0  # offset of the first damaged block
    truncated: bool = False
    too_long: int = 0

    def notes(self) -> Iterator[str]:
        if self.blocks:
            at = f"{'at' if self.blocks == 1 else 'the first at'} byte {self.first_byte:,}"
            blocks = counted(self.blocks, "damaged block")
            yield f"{blocks} of {_BLOCK_BYTES // 1024} KiB, {at}: data logged there is missing."
        if self.truncated:
            yield "The file ends within a record: the run was interrupted or is still writing."
        if self.too_long:
            yield f"{counted(self.too_long, 'record')} too long for metrics skipped."


def _records(log_file: LogFile, damage: _Damage) -> Iterator[bytes]:
    """Yield the records of LevelDB's write-ahead log, behind the header of the file.

    A record consists of pieces, each with a CRC-32 (not LevelDB's own CRC-32C). A damaged piece costs its record; a
    damaged length costs the rest of its block of 32 KiB.
    """
    pieces: list[bytes] | None = None
    length = start = 0
    place = _FILE_HEADER_BYTES
    with open_bytes(log_file.path) as file:
        block = file.read(_BLOCK_BYTES)
        while len(block) > place:
            for kind, content in _pieces(block, place, start, damage):
                if kind in (_WHOLE, _FIRST):
                    pieces, length = [], 0
                if kind == _LOST or pieces is None:
                    pieces = None  # the other pieces of a damaged record are useless
                    continue
                length += len(content)
                if length <= _MAX_RECORD_BYTES:
                    pieces.append(content)
                else:
                    pieces.clear()
                if kind in (_WHOLE, _LAST):
                    if length <= _MAX_RECORD_BYTES:
                        yield b"".join(pieces)
                    else:
                        damage.too_long += 1
                    pieces = None
            start, place = start + _BLOCK_BYTES, 0
            block = file.read(_BLOCK_BYTES)
        damage.truncated = damage.truncated or pieces is not None


def _pieces(block: bytes, place: int, start: int, damage: _Damage) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of the pieces in a block; `_LOST` for a damaged one."""
    damaged_before = damage.blocks
    while place < len(block):
        header = block[place : place + _PIECE_HEADER_BYTES]
        end = place + _PIECE_HEADER_BYTES + int.from_bytes(header[4:6], "little")
        if not any(header):
            return  # the block is padded with zeros
        whole = len(header) == _PIECE_HEADER_BYTES and end <= len(block)
        if len(block) < _BLOCK_BYTES and not whole:
            damage.truncated = True
            return
        content = block[place + _PIECE_HEADER_BYTES : end]
        seed = _CHECKSUM_SEEDS.get(header[6]) if whole else None
        if seed is not None and zlib.crc32(content, seed) == int.from_bytes(header[:4], "little"):
            yield header[6], content
        else:
            if damage.blocks == damaged_before:
                damage.first_byte = damage.first_byte if damaged_before else start
                damage.blocks += 1
            yield _LOST, b""
        place = end  # where the length is damaged, no checksum behind it will fit


class _Run:
    def __init__(self) -> None:
        self.content = LogContent()
        self.messages = MessageReader()
        self.name = ""
        self.exit_code: int | None = None
        self._row = 0
        self._axis = ""

    def add(self, record: bytes) -> None:
        for kind, wire, content in fields_of(record):
            if wire != 2 or not isinstance(content, bytes):
                continue
            if kind == _HISTORY:
                self._add_history(content)
            elif kind == _OUTPUT:
                for line in _printed_lines(content):
                    self.messages.read(line)
            elif kind == _CONFIG:
                self._add_config(content)
            elif kind == _RUN:
                self._add_run(content)
            elif kind == _METRIC:
                texts = {number: text for number, _, text in fields_of(content) if isinstance(text, bytes)}
                if texts.get(2) == b"*":  # the axis of all others: `define_metric("*", step_metric=NAME)`
                    self._axis = _text(texts.get(4, b"")) or self._axis
            elif kind == _EXIT:
                self.exit_code = _first_integer(content)

    def _add_history(self, history: bytes) -> None:
        values, rest = _simple_items(history)
        step = math.nan
        for kind, _, content in fields_of(history[rest:]):
            if kind == _ITEM and isinstance(content, bytes):
                name, value = _item(content)
                if type(value) is float:
                    values[name] = value
                elif isinstance(value, dict) and "_type" not in value:
                    values.update(_nested_numbers(value, name))
            elif kind == _STEP and isinstance(content, bytes) and "_step" not in values:
                step = float(_first_integer(content))
        step, time = values.pop("_step", step), values.pop("_timestamp", 0.0)
        values.pop("_runtime", None)
        if self._axis:
            step = values.pop(self._axis, math.nan)
        self._row += 1
        epoch = next((number for name, number in values.items() if is_epoch(name)), math.nan)
        self.content.add_row(self._row, values, step, epoch, time=time)
        if values and math.isfinite(step):
            self.messages.note_step(step, self._row)

    def _add_config(self, config: bytes) -> None:
        for item in submessages(config, 1):
            name, value = _item(item)
            if not name.startswith("_wandb"):
                room = max(0, _MAX_PARAMS - len(self.content.params))
                self.content.params.update(islice(_settings(name, value), room))

    def _add_run(self, run: bytes) -> None:
        fields = {kind: content for kind, _, content in fields_of(run) if isinstance(content, bytes)}
        self.name = _text(fields.get(8, b"")) or _text(fields.get(1, b"")) or self.name
        self._add_config(fields.get(4, b""))
        self.content.tags.update(
            (f"wandb.{tag}", _text(fields[kind])) for kind, tag in _RUN_TAGS.items() if fields.get(kind)
        )


def _console_content(log_file: LogFile, logged: LogContent) -> LogContent:
    """Read what the run printed, where it logged no curve."""
    log = TextLog(of_a_file=False)
    for record in _records(log_file, _Damage()):
        for output in submessages(record, _OUTPUT):
            for line in _printed_lines(output):
                log.take(line)
    content, _ = log.finish()
    content.params, content.tags = logged.params, logged.tags
    if content.columns:
        content.notes.append("No metric logged to W&B has two or more values; these are from the printed output.")
    return content


def _printed_lines(output: bytes) -> Iterator[str]:
    for kind, _, content in fields_of(output):
        if kind == 3 and isinstance(content, bytes):
            yield from map(clean_line, content.decode("utf-8", "replace").replace("\r", "\n").split("\n"))


def _first_integer(message: bytes) -> int:
    """Return the integer that is a message's first field; protobuf does not write a 0."""
    return next((signed(content) for kind, _, content in fields_of(message) if kind == 1 and type(content) is int), 0)


def _simple_items(history: bytes) -> tuple[dict[str, float], int]:
    """Return the leading items of one name and one JSON number, as almost all are, and the place of the others.

    The same as reading them field by field, ten times faster.
    """
    values: dict[str, float] = {}
    place, end = 0, len(history)
    while place + 4 < end and history[place] == _ITEM_TAG:
        item_end = place + 2 + history[place + 1]
        name_end = place + 4 + history[place + 3]
        if history[place + 1] > _MAX_ONE_BYTE_LENGTH or item_end > end or name_end + 2 >= item_end:
            break
        if history[place + 2] not in _KEY_TAGS or history[name_end : name_end + 2] != _VALUE_JSON_TAG:
            break
        if name_end + 3 + history[name_end + 2] != item_end:
            break
        try:
            values[history[place + 4 : name_end].decode()] = float(history[name_end + 3 : item_end])
        except ValueError:
            break
        place = item_end
    return values, place


def _nested_numbers(value: dict[str, object], prefix: str, depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, inner in value.items():
        name = f"{prefix}.{key}"
        if type(inner) in (int, float):
            yield name, number_in(inner)
        elif isinstance(inner, str) and inner in _NON_FINITE:
            yield name, _NON_FINITE[inner]
        elif isinstance(inner, dict) and depth < _MAX_DEPTH and "_type" not in inner:
            yield from _nested_numbers(inner, name, depth + 1)


def _item(item: bytes) -> tuple[str, object]:
    """Return name and value of an item of a history or a config, numbers as floats."""
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
            value = _NON_FINITE.get(text := _text(content), text)
        elif kind in (_VALUE_JSON, _JSON):
            value = _json_value(content)
    return ".".join(names), value


def _text(content: bytes) -> str:
    return content[:_MAX_TEXT_BYTES].decode("utf-8", "replace")


def _json_value(content: bytes) -> object:
    """Return a JSON value, numbers as floats; None for invalid JSON, or a value too long to be a metric."""
    if len(content) > _MAX_VALUE_BYTES:
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if type(value) in (int, float):
        return number_in(value)
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def _settings(name: str, value: object, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value and depth < _MAX_DEPTH:
        for key, inner in value.items():
            yield from _settings(f"{name}.{key}", inner, depth + 1)
    elif name and value is not None:
        is_integer = isinstance(value, float) and value.is_integer() and abs(value) < _MAX_INTEGER
        yield name, printable(str(int(value) if is_integer else value))  # type: ignore[call-overload]


FORMAT = LogFormat(
    "W&B's .wandb files", RecognisedBy.MARK, read_wandb_file, frozenset({".wandb"}), frozenset({"files", "logs", "tmp"})
)
