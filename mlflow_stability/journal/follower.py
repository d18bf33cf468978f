"""Reads a journal while it is being written.

In: a journal's path. Out: its records, each with the position after it. Guarantees: a line that is not whole yet is
left for later, one that never will be is passed over and counted, and nothing torn is ever given out as data; a journal
that was deleted ends with what was read of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlflow_stability.errors import JournalError
from mlflow_stability.journal.record import (
    SCHEMA,
    BrokenLineError,
    Record,
    decode,
    decode_layout,
    decode_step,
    unframe,
)
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.vocabulary.measured import Signal
from mlflow_stability.vocabulary.run import Opening


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and the position in the file behind it."""

    record: Record
    end: int


class JournalFollower:
    """Reader of one journal. It begins at the first line, for that is where names are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        """The position up to which lines were read."""
        self.broken_lines = 0
        self._layouts: dict[int, tuple[Signal, ...]] = {}

    def fork(self) -> JournalFollower:
        """Another follower, at the same place."""
        other = JournalFollower(self.path)
        other.position, other._layouts = self.position, dict(self._layouts)
        return other

    def read(self, limit: int = 100_000, until: int | None = None) -> list[Entry]:
        """The next records, at most `limit`, of lines that begin before the position `until`.

        Returns an empty list when there are none yet, or the journal was deleted.
        """
        found: list[Entry] = []
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return found
        with file:
            file.seek(self.position)
            for entry in self._entries(file, until):
                found.append(entry)
                if len(found) >= limit:
                    break
        return found

    def _entries(self, file: BinaryIO, until: int | None) -> Iterator[Entry]:
        for line in file:
            if not line.endswith(b"\n") or (until is not None and self.position >= until):
                return
            self.position += len(line)
            if line == b"\n":  # closes off a torn line
                continue
            try:
                record = self._record(line[:-1])
            except BrokenLineError:
                self.broken_lines += 1
                continue
            if record is not None:
                yield Entry(record, self.position)

    def _record(self, line: bytes) -> Record | None:
        said = unframe(line)
        if said[0] == "step":
            return decode_step(said, self._layouts)
        if said[0] == "layout":
            number, signals = decode_layout(said)
            self._layouts[number] = signals
            return None
        record = decode(said)
        if isinstance(record, Opening) and record.schema > SCHEMA:
            raise JournalError(
                f"{self.path} has format {record.schema}; this version reads up to {SCHEMA}. Update "
                "mlflow-stability to deliver it."
            )
        return record


def read_journal(path: Path) -> list[Record]:
    """Everything that a finished journal says."""
    follower = JournalFollower(path)
    records: list[Record] = []
    while entries := follower.read():
        records.extend(entry.record for entry in entries)
    return records


def is_deleted(folder: Path) -> bool:
    """Whether the journal of a recording that was there is gone; one that cannot be asked for is not."""
    try:
        (folder / JOURNAL).stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def size_of(folder: Path) -> int:
    """The bytes in the journal of a recording; 0 where it was deleted."""
    try:
        return (folder / JOURNAL).stat().st_size
    except FileNotFoundError:
        return 0


def opening_if_readable(folder: Path) -> Opening | None:
    """The first record of a recording, for those who can do without."""
    try:
        return opening_of(folder)
    except JournalError:
        return None


def opening_of(folder: Path) -> Opening | None:
    """The first record of a recording; None where it is not written yet."""
    try:
        first = JournalFollower(folder / JOURNAL).read(1)
    except OSError as error:
        raise JournalError(f"The journal in {folder} cannot be read: {error}") from error
    return first[0].record if first and isinstance(first[0].record, Opening) else None
