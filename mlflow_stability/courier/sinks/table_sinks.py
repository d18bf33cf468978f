"""Carries every reading of a journal into the Parquet record of its run.

In: records, from the position up to which parts have arrived. Out: parts, seldom at first and ever more seldom, so
that a long run does not end as thousands of files. Guarantees: a part that is sent twice lands on itself; at most
`_MOST_WAITING` observations are in memory.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from itertools import accumulate
from pathlib import Path

from mlflow_stability.courier.progress import Delivered, read_page, write_page
from mlflow_stability.courier.sinks.sink import Sink, upload_file
from mlflow_stability.errors import JournalError
from mlflow_stability.journal.layer_tables import LayerTableFile, layer_table_files, read_layer_table
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.artifacts import LAYER_TABLES_FOLDER, RECORD_FOLDER
from mlflow_stability.tracking.artifacts.layer_parts import layer_part_name, write_layer_part
from mlflow_stability.tracking.artifacts.record_parts import PartBuffer, part_name
from mlflow_stability.tracking.write import LayerMetrics, Point, RunWriter, chosen_signals
from mlflow_stability.vocabulary.measured import STATISTICS, LayerTable, Signal, StepReading

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


PAGE = "layers.json"
"""Up to which step tables have arrived."""
_SHORTEST_INTERVAL = 60.0
_INTERVALS_PER_RUN = 50
_MOST_BYTES = 32_000_000
_MOST_POINTS = 200
"""A request: on a SQLite file the script's own calls wait for it."""
_logger = logging.getLogger("mlflow_stability.courier")


class LayerSink:
    """The tables of layers of one recording."""

    words = "layers"

    def __init__(self, delivered: Delivered, writer: RunWriter, started: float, metrics: LayerMetrics = "") -> None:
        self.done = False
        self.hurried = False
        self._delivered = delivered
        self._writer = writer
        self._started = started
        self._metrics = metrics
        self._page = delivered.folder / PAGE
        self._until = int(read_page(self._page).get("until", -1))
        self._looked_at = time.time()

    def flush(self, over: bool) -> bool:
        """Send a part, where it is time to and there is something to send."""
        now = time.time()
        hurry = over or self.hurried
        if not hurry and now - self._looked_at < max(_SHORTEST_INTERVAL, (now - self._started) / _INTERVALS_PER_RUN):
            return False
        waiting = [each for each in layer_table_files(self._delivered.folder) if each.step > self._until]
        if not over and waiting:  # of the newest step there may be another table to come
            waiting = [each for each in waiting if each.step < waiting[-1].step]
        chosen = _as_many_as_fit(waiting)
        if chosen:
            self._send(chosen)
        more = len(chosen) < len(waiting)
        if not more:
            self._looked_at = now
            self.hurried = False
        self.done = over and not more
        return more

    def _send(self, files: list[LayerTableFile]) -> None:
        read = [(each, table) for each in files if (table := _read(each)) is not None]
        tables = [table for _, table in read]
        number, offset = self._delivered.number or 0, self._delivered.offset
        if tables:
            name = layer_part_name(number, files[0].step + offset)
            write = partial(write_layer_part, tables=tables, recording=number, offset=offset)
            upload_file(self._writer, LAYER_TABLES_FOLDER, name, write)
        if self._metrics:
            points = [point for file, table in read for point in self._points(file, table)]
            for begin in range(0, len(points), _MOST_POINTS):
                self._writer.log(points[begin : begin + _MOST_POINTS], self._delivered.section)
        self._until = files[-1].step
        write_page(self._page, {"until": self._until})

    def _points(self, file: LayerTableFile, table: LayerTable) -> list[Point]:
        """The statistics of a table; their time is that of its file, so that a store recognises what it has."""
        signals = tuple(Signal(f"{table.what}_{name}", layer) for layer in table.layers for name in STATISTICS)
        values = table.statistics.ravel().tolist()
        step, when = table.step + self._delivered.offset, _written(file.path)
        chosen = ((each.signal, each.value(values)) for each in chosen_signals(signals, self._metrics))
        return [Point(signal, step, value, when) for signal, value in chosen if math.isfinite(value)]


def _as_many_as_fit(files: list[LayerTableFile]) -> list[LayerTableFile]:
    """The first of them, whole steps only: the position to go on from is a step."""
    sizes = list(accumulate(_size(each) for each in files))
    room = next((number for number, size in enumerate(sizes) if size > _MOST_BYTES), len(files))
    if room == len(files):
        return files
    last = files[max(0, room - 1)].step
    whole = [each for each in files if each.step < last]
    return whole or [each for each in files if each.step == last]


def _size(file: LayerTableFile) -> int:
    try:
        return file.path.stat().st_size
    except OSError:
        return 0


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # deleted since it was read
        return time.time()


def _read(file: LayerTableFile) -> LayerTable | None:
    try:
        return read_layer_table(file.path)
    except JournalError as error:
        _logger.warning("%s", error)
        return None
