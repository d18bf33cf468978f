"""Reads TensorBoard's event files without TensorBoard.

In: one event file, or all of one folder, which belong to one run. Out: a `RunHistory`. Guarantees: scalars of
TensorFlow 1 (``simple_value``) and 2 (tensors), of PyTorch's writer too; files that are still being written or were
cut off; pictures, histograms and graphs are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from pathlib import Path

from mlflow_stability.importers.assemble.history import history_of
from mlflow_stability.importers.assemble.log_content import LogContent
from mlflow_stability.importers.decode import opened
from mlflow_stability.importers.files.wire_format import fields_of, records_of, signed
from mlflow_stability.importers.log_format import LogFormat, Opening, RecognisedBy
from mlflow_stability.vocabulary.run import RunHistory

_Event = tuple[int, float, dict[str, float]]
_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE, _TENSOR = 1, 1, 2, 8
_TYPE, _CONTENT = 1, 4
_TYPES = {1: ("f", 5), 2: ("d", 6), 3: ("i", 7), 9: ("q", 10), 19: ("e", 13), 14: ("bf16", 13)}
"""Of a tensor's element type: how it is packed in `tensor_content`, and the field that else holds it."""
_MAGIC = b"brain.Event:"


def is_event_file(head: bytes) -> bool:
    """Whether a file begins as TensorBoard's do: with a record that says so."""
    length = int.from_bytes(head[:8], "little") if len(head) >= 12 else 0
    return 0 < length < 256 and _MAGIC in head[12 : 12 + length]


def read_event_file(opening: Opening) -> list[RunHistory] | None:
    """The run in one event file."""
    return [read_event_files(opening.path, [opening.path])] if is_event_file(opening.head) else None


def read_event_files(source: Path, files: Sequence[Path]) -> RunHistory:
    """The run that event files tell of, oldest first."""
    return _history(source, _events(files))


def read_split_event_files(source: Path, parts: Mapping[str, Sequence[Path]]) -> RunHistory:
    """The run whose parts wrote event files of their own (Keras's `train` and `validation`), in the order of time."""
    events = (_events(files, f"{part}/" if part else "") for part, files in parts.items())
    return _history(source, merge(*events, key=lambda event: event[1]))


def _history(source: Path, events: Iterable[_Event]) -> RunHistory:
    content = LogContent()
    for row, (step, time, values) in enumerate(events, start=1):
        content.add_row(row, values, float(step), time=time)
    return history_of(content, source, "tensorboard")


def _events(files: Sequence[Path], prefix: str = "") -> Iterator[_Event]:
    """Step, time and values of each event that has some."""
    for file in files:
        with opened(file) as binary:
            for record in records_of(binary):
                step, time, values = _event(record)
                if values:
                    yield step, time, {f"{prefix}{tag}": value for tag, value in values.items()} if prefix else values


def _event(record: bytes) -> _Event:
    step, time = 0, 0.0
    values: dict[str, float] = {}
    for number, kind, content in fields_of(record):
        if number == _WALL_TIME and kind == 1 and isinstance(content, bytes):
            time = float(struct.unpack("<d", content)[0])
        elif number == _STEP and isinstance(content, int):
            step = signed(content)
        elif number == _SUMMARY and isinstance(content, bytes):
            values.update(_scalars(content))
    return step, time, values


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, kind, content in fields_of(summary):
        if number != _VALUE or kind != 2 or not isinstance(content, bytes):
            continue
        tag, value = "", None
        for field, wire, part in fields_of(content):
            if field == _TAG and isinstance(part, bytes):
                tag = part.decode("utf-8", "replace")
            elif field == _SIMPLE and wire == 5 and isinstance(part, bytes):
                value = float(struct.unpack("<f", part)[0])
            elif field == _TENSOR and wire == 2 and isinstance(part, bytes):
                value = _scalar(part)
        if tag and value is not None:
            yield tag, value


def _scalar(tensor: bytes) -> float | None:
    """The number in a tensor that holds one number; None for any other."""
    kind, packed, single = 0, b"", b""
    for number, wire, content in fields_of(tensor):
        if number == _TYPE and isinstance(content, int):
            kind = content
        elif number == _CONTENT and isinstance(content, bytes):
            packed = content
        elif kind in _TYPES and number == _TYPES[kind][1]:
            if isinstance(content, int):
                return _whole(content, kind)
            single = content if wire in (1, 2, 5) else b""
    if kind not in _TYPES:
        return None
    layout = _TYPES[kind][0]
    for raw in (packed, single):
        if raw and layout == "bf16":
            return float(struct.unpack("<f", b"\0\0" + raw)[0]) if len(raw) == 2 else None
        if raw and len(raw) == struct.calcsize(layout):
            return float(struct.unpack(f"<{layout}", raw)[0])
    return None


def _whole(content: int, kind: int) -> float | None:
    if kind in (14, 19):  # half precision stands in its field as the bits of a whole number
        bits = content & 0xFFFF
        packed = struct.pack("<H", bits)
        return float(struct.unpack("<e", packed)[0] if kind == 19 else struct.unpack("<f", b"\0\0" + packed)[0])
    return float(signed(content))


FORMAT = LogFormat("TensorBoard event files", RecognisedBy.MARK, read_event_file)
