"""Read TensorBoard's event files without TensorBoard.

Reads scalars of TensorFlow 1 (`simple_value`) and 2 (tensors), of PyTorch's writer too, from files that are still being
written or are truncated; pictures, histograms and graphs are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from pathlib import Path

from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.log_content import LogContent
from mlflow_stability.importers.log_format import LogFile, LogFormat, RecognisedBy
from mlflow_stability.importers.log_text import open_bytes
from mlflow_stability.importers.wire_format import fields_of, signed, submessages, tf_records
from mlflow_stability.vocabulary.run import RunHistory

_Event = tuple[int, float, dict[str, float]]  # step, time and values
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE, _TAG, _SIMPLE, _TENSOR = 1, 1, 2, 8
_TYPE, _CONTENT = 1, 4
_HALF, _BFLOAT16 = 19, 14
_TYPES = {1: ("<f", 5), 2: ("<d", 6), 3: ("<i", 7), 9: ("<q", 10), _HALF: ("<e", 13), _BFLOAT16: ("", 13)}
"""Layout of an element type in `tensor_content`, and the field that holds it otherwise."""
_MAGIC = b"brain.Event:"


def is_event_file(head: bytes) -> bool:
    """Whether a file begins as TensorBoard's do: with a record that says so."""
    length = int.from_bytes(head[:8], "little") if len(head) >= 12 else 0
    return 0 < length < 256 and _MAGIC in head[12 : 12 + length]


def read_event_file(log_file: LogFile) -> list[RunHistory] | None:
    return read_event_files(log_file.path, {"": [log_file.path]}) if is_event_file(log_file.head) else None


def read_event_files(source: Path, splits: Mapping[str, Sequence[Path]]) -> list[RunHistory]:
    """Return the run in event files, oldest first, by split: Keras writes `train` and `validation`, others no split."""
    events = (_events(files, f"{split}/" if split else "") for split, files in splits.items())
    content = LogContent()
    for row, (step, time, values) in enumerate(merge(*events, key=lambda event: event[1]), start=1):
        content.add_row(row, values, float(step), time=time)
    return [history_of(content, source, "tensorboard")]


def _events(files: Sequence[Path], prefix: str = "") -> Iterator[_Event]:
    """Yield each event that has values."""
    for file in files:
        with open_bytes(file) as binary:
            for record in tf_records(binary):
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
    for item in submessages(summary, _VALUE):
        tag, value = "", None
        for field, wire, part in fields_of(item):
            if field == _TAG and isinstance(part, bytes):
                tag = part.decode("utf-8", "replace")
            elif field == _SIMPLE and wire == 5 and isinstance(part, bytes):
                value = float(struct.unpack("<f", part)[0])
            elif field == _TENSOR and wire == 2 and isinstance(part, bytes):
                value = _tensor_scalar(part)
        if tag and value is not None:
            yield tag, value


def _tensor_scalar(tensor: bytes) -> float | None:
    """Return the number in a tensor of one element; None for any other."""
    kind, packed, single = 0, b"", b""
    for number, wire, content in fields_of(tensor):
        if number == _TYPE and isinstance(content, int):
            kind = content
        elif number == _CONTENT and isinstance(content, bytes):
            packed = content
        elif kind in _TYPES and number == _TYPES[kind][1]:
            if isinstance(content, int):
                if kind in (_HALF, _BFLOAT16):  # the field holds the bits of half precision as an integer
                    return _unpacked(struct.pack("<H", content & 0xFFFF), kind)
                return float(signed(content))
            single = content if wire in (1, 2, 5) else b""
    if kind not in _TYPES:
        return None
    numbers = (_unpacked(raw, kind) for raw in (packed, single) if raw)
    return next((number for number in numbers if number is not None), None)


def _unpacked(raw: bytes, kind: int) -> float | None:
    """Return the number in these bytes; None where they hold none or several."""
    layout = _TYPES[kind][0]
    if kind == _BFLOAT16:
        layout, raw = "<f", b"\0\0" + raw
    return float(struct.unpack(layout, raw)[0]) if len(raw) == struct.calcsize(layout) else None


FORMAT = LogFormat("TensorBoard event files", RecognisedBy.MARK, read_event_file)
