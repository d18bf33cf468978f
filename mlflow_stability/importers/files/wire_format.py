"""The binary forms that TensorBoard's and W&B's files are made of: records of TFRecord, fields of protocol buffers.

In: bytes. Out: records; of a message its fields by number. Guarantees: a file that ends in the middle of a record gives
all records before it; nothing here trusts a length that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

_HEADER, _FOOTER = 12, 4
LONGEST_RECORD = 256 * 1024 * 1024


def records_of(file: BinaryIO) -> Iterator[bytes]:
    """The records of a file, as long as they are whole."""
    while len(header := file.read(_HEADER)) == _HEADER:
        length = int.from_bytes(header[:8], "little")
        if length > LONGEST_RECORD:
            return
        record = file.read(length)
        if len(record) < length or len(file.read(_FOOTER)) < _FOOTER:
            return
        yield record


def fields_of(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """The fields of a message: number, wire type and value; a broken one ends it."""
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


def signed(number: int) -> int:
    """The whole number that a field of 64 bits holds, where it may be negative."""
    number &= (1 << 64) - 1
    return number if number < 1 << 63 else number - (1 << 64)


def zigzag(number: int) -> int:
    """The whole number that a field of type `sint` holds."""
    number &= (1 << 64) - 1
    return (number >> 1) ^ -(number & 1)


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number of variable length, and the place behind it; behind the end where it is cut off."""
    value = shift = 0
    while place < len(message) and shift < 70:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    return 0, len(message) + 1
