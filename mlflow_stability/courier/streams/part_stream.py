"""Carries every reading of a journal into the Parquet record of its run.

In: the journal, from the position up to which parts have arrived. Out: parts, seldom at first and ever more seldom, so
that a long run does not end as thousands of files. Guarantees: a part that is sent twice lands on itself; at most
`_MOST_WAITING` observations are in memory.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.errors import TrackingError
from mlflow_stability.journal.follower import JournalFollower
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.tracking.artifacts import RECORD_FOLDER
from mlflow_stability.tracking.artifacts.record_parts import PartBuffer, part_name
from mlflow_stability.tracking.write import RunWriter
from mlflow_stability.vocabulary.measured import StepReading

_READ_AT_ONCE = 500
_MOST_WAITING = 1_000_000
_SHORTEST_INTERVAL = 60.0
_INTERVALS_PER_RUN = 50


class PartStream:
    """The full-resolution record of one recording."""

    def __init__(self, delivered: Delivered, writer: RunWriter, started: float) -> None:
        self.done = False
        self.hurried = False
        self._delivered = delivered
        self._writer = writer
        self._started = started
        self._follower = JournalFollower(delivered.folder / JOURNAL, delivered.parts_until)
        self._buffer = PartBuffer()
        self._read_until = delivered.parts_until
        self._sent_at = time.time()
        self._overdue = False

    @property
    def reached(self) -> int:
        """The position up to which parts have arrived; what waits for the next part to be due does not count."""
        return self._delivered.parts_until if self._overdue else self._read_until

    def advance(self, over: bool) -> bool:
        """Read on, and send a part when it is due."""
        full = len(self._buffer) + self._buffer.readings >= _MOST_WAITING
        more = not full and self._read()
        if full or (not more and (over or self.hurried or self._due())):
            self._overdue = True
            self._send()
            self._overdue = False
            self.done = over and not full
            self.hurried = self.hurried and full
        return full or more

    def _read(self) -> bool:
        entries = self._follower.read(_READ_AT_ONCE)
        for entry in entries:
            if isinstance(entry.record, StepReading):
                self._buffer.add(entry.record, entry.record.step + self._delivered.offset)
            self._read_until = entry.end
        return len(entries) >= _READ_AT_ONCE

    def _due(self) -> bool:
        now = time.time()
        return now - self._sent_at >= max(_SHORTEST_INTERVAL, (now - self._started) / _INTERVALS_PER_RUN)

    def _send(self) -> None:
        if self._buffer.readings:
            self._upload()
            self._buffer.clear()
        if self._read_until > self._delivered.parts_until:
            self._delivered.parts_until = self._read_until
            self._delivered.save()
        self._sent_at = time.time()

    def _upload(self) -> None:
        number = self._delivered.number or 0
        try:
            with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
                file = Path(room, part_name(number, self._delivered.parts_until))
                self._buffer.write(file, number)
                self._writer.upload(file, RECORD_FOLDER)
        except OSError as error:
            raise TrackingError(f"Could not write a part of the record: {error}") from error
