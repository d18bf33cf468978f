"""The one reader of a recording's journal: decodes each record once, for all sinks.

Guarantees: a full sink neither delays the others nor fills the memory. When its patience is over, it gets a cursor of
its own, which reads on when there is room again and ends when it has caught up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.courier.sinks.sink import Sink
from mlflow_stability.journal.follower import JournalFollower
from mlflow_stability.journal.writer import JOURNAL as JOURNAL

READ_AT_ONCE = 500  # records between two checks for full sinks


@dataclass(slots=True)
class _Cursor:
    """Sinks at the same position of the journal."""

    follower: JournalFollower
    sinks: list[Sink]

    @property
    def position(self) -> int:
        return self.follower.position

    @property
    def waits(self) -> bool:
        """Whether nothing is read: all sinks are full, or one for which the others wait."""
        full = [sink for sink in self.sinks if sink.full]
        return len(full) == len(self.sinks) or any(sink.patience for sink in full)

    def read(self, until: int | None) -> bool:
        """Give the next records to the sinks; whether there may be more."""
        entries = self.follower.read(READ_AT_ONCE, until)
        for entry in entries:
            for sink in self.sinks:
                if entry.end > sink.until:
                    sink.take(entry.record)
                    sink.until = entry.end
        return len(entries) >= READ_AT_ONCE


class JournalReader:
    def __init__(self, folder: Path) -> None:
        self._file = folder / JOURNAL
        self._cursors: list[_Cursor] = []

    def add(self, *sinks: Sink) -> None:
        """Add sinks with a new cursor: it starts at the beginning of the journal, where the names are."""
        if sinks:
            self._cursors.append(_Cursor(JournalFollower(self._file), list(sinks)))

    def advance(self) -> bool:
        """Give a portion of records to each sink that is not full; True if there is more to read at once."""
        now = time.monotonic()
        # Sinks that have been full for too long get a cursor of their own.
        for cursor in list(self._cursors):
            for sink in cursor.sinks:
                sink.full_since = (sink.full_since or now) if sink.full else None
            full = [sink for sink in cursor.sinks if sink.full_since and now - sink.full_since >= sink.patience]
            if full and len(full) < len(cursor.sinks):
                cursor.sinks = [sink for sink in cursor.sinks if sink not in full]
                self._cursors.append(_Cursor(cursor.follower.fork(), full))
        self._cursors.sort(key=lambda cursor: (cursor.position, not cursor.sinks[0].full), reverse=True)
        until: int | None = None
        more = True  # as far as is known while the first cursor waits
        for cursor in self._cursors:
            if not cursor.waits:  # as far as the cursor before it, and not beyond: there they become one
                has_more = cursor.read(until)
                more = has_more if until is None else more
            until = cursor.position
        for cursor in self._cursors:
            for sink in cursor.sinks:
                sink.more = more or cursor.position < self._cursors[0].position
                if not sink.more:
                    sink.end_seen_at = now
        self._unite()
        return any(cursor.sinks[0].more and not cursor.waits for cursor in self._cursors)

    def _unite(self) -> None:
        """Merge cursors at the same position."""
        united: dict[int, _Cursor] = {}
        for cursor in self._cursors:
            first = united.setdefault(cursor.position, cursor)
            if first is not cursor:
                first.sinks += cursor.sinks
        self._cursors = list(united.values())
