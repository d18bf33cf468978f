"""Read a journal while it is being written.

Guarantees: an incomplete last line is left for later, a broken line is skipped and counted, and neither is returned as
data; a journal that was deleted ends with what was read of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlflow_stability.errors import JournalError
from mlflow_stability.journal.record import (
    NO_RECORD,
    SCHEMA,
    BrokenLineError,
    Record,
    decode,
    decode_layout,
    decode_step,
    unframe,
)
from mlflow_stability.journal.writer import JOURNAL as JOURNAL
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.run import Opening


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, and the position in the file after it."""

    record: Record
    end: int


class JournalFollower:
    """Reader of one journal. It begins at the first line, because later lines refer to names there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0  # the position up to which lines were read
        self.broken_lines = 0
        self._layouts: dict[int, tuple[Signal, ...]] = {}

    def fork(self) -> JournalFollower:
        """Return another follower at the same position."""
        other = JournalFollower(self.path)
        other.position, other._layouts = self.position, dict(self._layouts)
        return other

    def read(self, limit: int = 100_000, until: int | None = None) -> list[Entry]:
        """Return the next records, at most `limit`, of lines that begin before the position `until`.

        Returns an empty list when there are none yet, or the journal was deleted.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            file.seek(self.position)
            return list(itertools.islice(self._entries(file, until), limit))

    def _entries(self, file: BinaryIO, until: int | None) -> Iterator[Entry]:
        for line in file:
            if not line.endswith(b"\n") or (until is not None and self.position >= until):
                return
            self.position += len(line)
            if line == b"\n":  # closes off a torn line
                continue
            try:
                record = self._record(line[:-1])
            except (BrokenLineError, *NO_RECORD):
                self.broken_lines += 1
                continue
            if record is not None:
                yield Entry(record, self.position)

    def _record(self, line: bytes) -> Record | None:
        values = unframe(line)
        if values[0] == "step":
            return decode_step(values, self._layouts)
        if values[0] == "layout":
            number, signals = decode_layout(values)
            self._layouts[number] = signals
            return None
        record = decode(values)
        if isinstance(record, Opening) and record.schema > SCHEMA:
            raise JournalError(
                f"{self.path} has format {record.schema}; this version reads up to {SCHEMA}. Update "
                "mlflow-stability to deliver it."
            )
        return record


def read_journal(path: Path) -> list[Record]:
    follower = JournalFollower(path)
    records: list[Record] = []
    while entries := follower.read():
        records.extend(entry.record for entry in entries)
    return records


def is_deleted(folder: Path) -> bool:
    """Whether the journal of a recording was deleted; False where the file system does not answer."""
    try:
        (folder / JOURNAL).stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def journal_size(folder: Path) -> int:
    """Return the size of a recording's journal in bytes; 0 where it was deleted."""
    try:
        return (folder / JOURNAL).stat().st_size
    except FileNotFoundError:
        return 0


def opening_if_readable(folder: Path) -> Opening | None:
    """Return the first record of a recording; None where it is missing or unreadable."""
    try:
        return opening_of(folder)
    except JournalError:
        return None


def opening_of(folder: Path) -> Opening | None:
    """Return the first record of a recording; None where it is not written yet."""
    try:
        first = JournalFollower(folder / JOURNAL).read(1)
    except OSError as error:
        raise JournalError(f"The journal in {folder} cannot be read: {error}") from error
    return first[0].record if first and isinstance(first[0].record, Opening) else None
