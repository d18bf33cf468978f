"""Carries every reading of a journal into the Parquet record of its run.

In: records, from the position up to which parts have arrived. Out: parts, seldom at first and ever more seldom, so
that a long run does not end as thousands of files. Guarantees: a part that is sent twice lands on itself; at most
`_MOST_WAITING` observations are in memory.
"""

from __future__ import annotations

import time

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.sink import Sink
from mlflow_stability.courier.upload import upload_file
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.artifacts import RECORD_FOLDER
from mlflow_stability.tracking.artifacts.record_parts import PartBuffer, part_name
from mlflow_stability.tracking.write import RunWriter
from mlflow_stability.vocabulary.measured import StepReading

_MOST_WAITING = 1_000_000
_SHORTEST_INTERVAL = 60.0
_INTERVALS_PER_RUN = 50


class PartSink(Sink):
    """The full-resolution record of one recording."""

    words = "full record"

    def __init__(self, delivered: Delivered, writer: RunWriter, started: float) -> None:
        super().__init__(delivered.parts_until)
        self.done = False
        self.hurried = False
        self._delivered = delivered
        self._writer = writer
        self._started = started
        self._buffer = PartBuffer()
        self._sent_at = time.time()
        self._overdue = False

    @property
    def reached(self) -> int:
        """The position up to which parts have arrived; what waits for the next part to be due does not count."""
        return self._delivered.parts_until if self._overdue else self.until

    @property
    def full(self) -> bool:
        """Whether as many observations wait as may be in memory."""
        return len(self._buffer) + self._buffer.readings >= _MOST_WAITING

    def take(self, record: Record) -> None:
        """Keep a reading for the next part."""
        if isinstance(record, StepReading):
            self._buffer.add(record, record.step + self._delivered.offset)

    def flush(self, over: bool) -> bool:
        """Send a part when it is due."""
        full = self.full
        if full or (not self.more and (over or self.hurried or self._due())):
            self._overdue = True
            self._send()
            self._overdue = False
            self.done = over and not full
            self.hurried = self.hurried and full
        return full

    def _due(self) -> bool:
        now = time.time()
        return now - self._sent_at >= max(_SHORTEST_INTERVAL, (now - self._started) / _INTERVALS_PER_RUN)

    def _send(self) -> None:
        if self._buffer.readings:
            number = self._delivered.number or 0
            name = part_name(number, self._delivered.parts_until)
            upload_file(self._writer, RECORD_FOLDER, name, lambda file: self._buffer.write(file, number))
            self._buffer.clear()
        if self.until > self._delivered.parts_until:
            self._delivered.parts_until = self.until
            self._delivered.save()
        self._sent_at = time.time()
