"""The framing of LevelDB's write-ahead log, in which W&B keeps what a run sends.

In: bytes behind the file's own header. Out: records. Guarantees: each piece is checked against its checksum (the CRC-32
that W&B writes, not LevelDB's own CRC-32C); a damaged piece costs its record, and where its length is what is damaged
the rest of its block of 32 KiB, but no more, and is counted; a file that ends in the middle gives all records before
it; nothing here trusts a length that it reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 32_768
LONGEST_RECORD = 64 * 1024 * 1024
"""A longer record is given up: it is a picture or a table, and no metric."""
_HEADER = 7
_LOST, _WHOLE, _FIRST, _MIDDLE, _LAST = 0, 1, 2, 3, 4
_SEEDS = {kind: zlib.crc32(bytes([kind])) for kind in (_WHOLE, _FIRST, _MIDDLE, _LAST)}


@dataclass(slots=True)
class Losses:
    """What of a log could not be read."""

    damaged_blocks: int = 0
    first_damage: int = 0
    """Where in the file the first damaged block begins."""
    cut: bool = False
    """Whether the file ends in the middle of a record."""
    too_long: int = 0


def records_of(file: BinaryIO, behind: int, losses: Losses) -> Iterator[bytes]:
    """The records of a file whose own header of this many bytes has been read."""
    pieces: list[bytes] | None = None
    length = start = 0
    block = bytes(behind) + file.read(BLOCK - behind)
    while len(block) > behind:
        for kind, content in _pieces(block, behind, start, losses):
            if kind in (_WHOLE, _FIRST):
                pieces, length = [], 0
            if kind == _LOST or pieces is None:
                pieces = None  # of a record that lost a piece the others are nothing
                continue
            length += len(content)
            if length <= LONGEST_RECORD:
                pieces.append(content)
            else:
                pieces.clear()
            if kind in (_WHOLE, _LAST):
                if length <= LONGEST_RECORD:
                    yield b"".join(pieces)
                else:
                    losses.too_long += 1
                pieces = None
        start, behind = start + BLOCK, 0
        block = file.read(BLOCK)
    losses.cut = losses.cut or pieces is not None


def _pieces(block: bytes, place: int, start: int, losses: Losses) -> Iterator[tuple[int, bytes]]:
    """The pieces of records in a block, and where one is damaged, that it is."""
    known = losses.damaged_blocks
    while place < len(block):
        size = int.from_bytes(block[place + 4 : place + 6], "little")
        end = place + _HEADER + size
        if not any(block[place : place + _HEADER]):
            return  # filled up with zeros to the end of the block
        if len(block) < BLOCK and (end > len(block) or place + _HEADER > len(block)):
            losses.cut = True
            return
        kind = block[place + 6] if place + _HEADER <= len(block) else _LOST
        content = block[place + _HEADER : end]
        told = int.from_bytes(block[place : place + 4], "little")
        if end <= len(block) and kind in _SEEDS and zlib.crc32(content, _SEEDS[kind]) == told:
            yield kind, content
        else:
            if losses.damaged_blocks == known:
                losses.first_damage = losses.first_damage if known else start
                losses.damaged_blocks += 1
            yield _LOST, b""
        place = end  # where it was the length that was damaged, no checksum behind it will fit
