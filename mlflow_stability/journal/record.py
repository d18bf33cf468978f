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
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
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
_FIELDS = {name: frozenset(member.name for member in fields(kind)) for name, kind in _KINDS.items()}


NO_RECORD = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What decoding raises where a line is whole, and its JSON has not the form of a record."""


class BrokenLineError(ValueError):
    """The line was torn, or refers to a lost one."""


def frame(payload: bytes) -> bytes:
    """One line of the journal around a JSON text."""
    return b"%08x %b\n" % (crc32(payload), payload)


def unframe(line: bytes) -> list[Any]:
    """Return the JSON array of a line without its newline; BrokenLineError if the line was torn."""
    payload = line[9:]
    if len(line) < 10 or line[:9] != b"%08x " % crc32(payload):
        raise BrokenLineError
    try:
        values = orjson.loads(payload)
    except orjson.JSONDecodeError:
        raise BrokenLineError from None
    if not isinstance(values, list) or not values:
        raise BrokenLineError
    return values


def to_json(value: Any) -> bytes:
    """Encode JSON whose texts may be invalid Unicode: a folder's name, an error message."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_with_valid_unicode(value))


def _with_valid_unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_with_valid_unicode(key): _with_valid_unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_valid_unicode(item) for item in value]
    return value


def encode_layout(number: int, signals: Sequence[Signal]) -> bytes:
    return frame(to_json(["layout", number, [[signal.quantity, signal.place] for signal in signals]]))


def decode_layout(values: list[Any]) -> tuple[int, tuple[Signal, ...]]:
    return values[1], tuple(Signal(quantity, place) for quantity, place in values[2])


def encode_step(reading: StepReading, layout: int) -> bytes:
    values: Sequence[float | str] = reading.values
    if not math.isfinite(sum(reading.values)):  # one cheap test for all values; an overflow of the sum only costs time
        values = [value if math.isfinite(value) else repr(float(value)) for value in reading.values]
    payload = orjson.dumps(["step", reading.step, reading.attempt, reading.time, layout, values])
    return b"%08x %b\n" % (crc32(payload), payload)  # inlined `frame`, because this runs at each step


def decode_step(line: list[Any], layouts: dict[int, tuple[Signal, ...]]) -> StepReading:
    """Return the reading of a step line; BrokenLineError if the line that names its signals was lost."""
    _, step, attempt, time, layout, values = line
    signals = layouts.get(layout)
    if signals is None or len(signals) != len(values) or type(step) is not int or type(attempt) is not int:
        raise BrokenLineError
    return StepReading(step, signals, tuple(map(float, values)), attempt, time)


def encode(record: Record) -> bytes:
    """Return the line of any record but a step's, which needs its layout."""
    values = as_record(record) | {"severity": int(record.severity)} if isinstance(record, Finding) else asdict(record)
    return frame(to_json([_NAMES[type(record)], values]))


def decode(values: list[Any]) -> Record | None:
    """Return the record of a line that is no step and no layout; None for kinds of lines of later versions."""
    name = values[0]
    kind = _KINDS.get(name)
    if kind is None:
        return None
    if kind is Finding:
        return from_record(values[1])
    record: Record = kind(**{key: value for key, value in values[1].items() if key in _FIELDS[name]})
    return record
