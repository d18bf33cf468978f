"""The journal's format, and the only place that knows it.

A journal is a text file. Each line is

    CRC JSON \\n

where CRC is the CRC-32 of the JSON as 8 hexadecimal digits, one space behind it. The JSON is an array whose first
element says what the line is:

    ["open", {…}]                                        the first line: fields of `Opening`, `schema` among them
    ["layout", number, [[quantity, place], …]]           names, written once; readings refer to them by number
    ["step", step, attempt, time, layout, [value, …]]    one capture: the values in the order of the layout's names
    ["event", {…}]  ["note", {…}]  ["fact", {…}]  ["reset", {…}]  ["gap", {…}]
    ["returned", {…}]  ["close", {…}]

A value is a JSON number; NaN and the infinities, which JSON has not, are the strings "nan", "inf" and "-inf". A line
whose CRC does not fit is not data: it was torn by a full disk or a kill. Fields may be added to the objects and kinds
of lines may be added without a new schema number, for readers pass over what they do not know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, TypeAlias
from zlib import crc32

import orjson

from mlflow_stability.kinds.finding_records import as_record, from_record
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing, Fact, Gap, Note, Opening, Reset, Returned

SCHEMA = 1
Record: TypeAlias = StepReading | Finding | Opening | Note | Fact | Reset | Gap | Returned | Closing

_KINDS: dict[str, type[Any]] = {
    "open": Opening,
    "event": Finding,
    "note": Note,
    "fact": Fact,
    "reset": Reset,
    "gap": Gap,
    "returned": Returned,
    "close": Closing,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {name: frozenset(each.name for each in fields(kind)) for name, kind in _KINDS.items()}


class BrokenLineError(ValueError):
    """This line is not data."""


def frame(payload: bytes) -> bytes:
    """One line of the journal around a JSON text."""
    return b"%08x %b\n" % (crc32(payload), payload)


def unframe(line: bytes) -> list[Any]:
    """What a line says, newline taken off; BrokenLineError if it was torn."""
    payload = line[9:]
    if len(line) < 10 or line[:9] != b"%08x " % crc32(payload):
        raise BrokenLineError
    try:
        said = orjson.loads(payload)
    except orjson.JSONDecodeError:
        raise BrokenLineError from None
    if not isinstance(said, list) or not said:
        raise BrokenLineError
    return said


def to_json(said: Any) -> bytes:
    """JSON of text that may hold what is no valid Unicode: a folder's name, an error message."""
    try:
        return orjson.dumps(said)
    except orjson.JSONEncodeError:
        return orjson.dumps(_made_valid(said))


def _made_valid(said: Any) -> Any:
    if isinstance(said, str):
        return said.encode("utf-8", "backslashreplace").decode()
    if isinstance(said, dict):
        return {_made_valid(key): _made_valid(value) for key, value in said.items()}
    if isinstance(said, list | tuple):
        return [_made_valid(each) for each in said]
    return said


def encode_layout(number: int, signals: Sequence[Signal]) -> bytes:
    """The line that gives a tuple of names its number."""
    return frame(to_json(["layout", number, [[each.quantity, each.place] for each in signals]]))


def decode_layout(said: list[Any]) -> tuple[int, tuple[Signal, ...]]:
    """The number and the names of a layout line."""
    return said[1], tuple(Signal(quantity, place) for quantity, place in said[2])


def encode_step(reading: StepReading, layout: int) -> bytes:
    """The line of one capture."""
    values: Sequence[float | str] = reading.values
    if not math.isfinite(sum(reading.values)):  # one cheap look for all; a sum that overflows costs only the slow way
        values = [value if math.isfinite(value) else repr(float(value)) for value in reading.values]
    payload = orjson.dumps(["step", reading.step, reading.attempt, reading.time, layout, values])
    return b"%08x %b\n" % (crc32(payload), payload)  # as `frame` does, which would be one more call at each step


def decode_step(said: list[Any], layouts: dict[int, tuple[Signal, ...]]) -> StepReading:
    """The reading of a step line; BrokenLineError if the line that names its signals was lost."""
    _, step, attempt, time, layout, values = said
    signals = layouts.get(layout)
    if signals is None or len(signals) != len(values):
        raise BrokenLineError
    return StepReading(step, signals, tuple(map(float, values)), attempt, time)


def encode(record: Record) -> bytes:
    """The line of any record but a step's, which needs its layout."""
    values = as_record(record) | {"severity": int(record.severity)} if isinstance(record, Finding) else asdict(record)
    return frame(to_json([_NAMES[type(record)], values]))


def decode(said: list[Any]) -> Record | None:
    """The record of a line that is no step and no layout; None if a later version of this format wrote it."""
    name = said[0]
    kind = _KINDS.get(name)
    if kind is None:
        return None
    if kind is Finding:
        return from_record(said[1])
    record: Record = kind(**{key: value for key, value in said[1].items() if key in _FIELDS[name]})
    return record
