"""Binary framing of TensorBoard's and W&B's files: TFRecord, and fields of protocol buffers.

A file that ends in the middle of a record gives all records before it; no length in a file is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

_HEADER_BYTES, _FOOTER_BYTES = 12, 4
MAX_RECORD_BYTES = 256 * 1024 * 1024


def tf_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records of a TFRecord file, as long as they are whole."""
    while len(header := file.read(_HEADER_BYTES)) == _HEADER_BYTES:
        length = int.from_bytes(header[:8], "little")
        if length > MAX_RECORD_BYTES:
            return
        record = file.read(length)
        if len(record) < length or len(file.read(_FOOTER_BYTES)) < _FOOTER_BYTES:
            return
        yield record


def fields_of(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and value of each field of a message, up to the first broken one."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if kind == 0:
            value, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, place = message[place : place + size], place + size
        elif kind == 2:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        else:
            return
        if place > end or place < 0:
            return
        yield number, kind, value


def submessages(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the fields of this number that hold bytes: texts and messages."""
    for field, kind, value in fields_of(message):
        if field == number and kind == 2 and isinstance(value, bytes):
            yield value


def signed(number: int) -> int:
    """Return a field of 64 bits as an integer that may be negative."""
    number &= (1 << 64) - 1
    return number if number < 1 << 63 else number - (1 << 64)


def zigzag(number: int) -> int:
    """Return a field of type `sint` as an integer."""
    number &= (1 << 64) - 1
    return (number >> 1) ^ -(number & 1)


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number of variable length and the place after it, which is behind the end where it is truncated."""
    value = shift = 0
    while place < len(message) and shift < 70:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    return 0, len(message) + 1
