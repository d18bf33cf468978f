"""Deliver thinned points of a journal to MLflow's metric tables, at a bounded rate.

Guarantees: after a kill the same points are sent again, which the store recognises; memory is bounded. A slow store
gets the newest points first, and the postponed ones when there is time, at the latest after the training. On a SQLite
file every writer blocks all others, the script's own `log_metric` included: batches are small there, and during
training at most 4 % of the time is used.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mlflow_stability.courier.sinks.sink import TimedSink
from mlflow_stability.errors import StabilityError
from mlflow_stability.journal.journal import Record
from mlflow_stability.tracking.address import is_sqlite
from mlflow_stability.tracking.thinning import LayerMetrics, Point, SingleValues, Thinner, is_of_the_script
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding

HELD_READINGS = 128  # findings come up to half as many readings later


class HeldReadings:
    """The newest steps and their positions in the journal: they wait for their findings."""

    def __init__(self) -> None:
        self._held: deque[tuple[StepReading, int]] = deque()
        self._marked: set[int] = set()  # steps with findings

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        return len(self._held) > HELD_READINGS

    @property
    def oldest(self) -> StepReading:
        return self._held[0][0]

    @property
    def begins(self) -> int | None:
        """Position of the oldest one, if any."""
        return self._held[0][1] if self._held else None

    def take(self, record: Record, begins: int) -> None:
        """Hold a step, or mark the step of a finding."""
        if isinstance(record, StepReading):
            if not is_of_the_script(record):
                self._held.append((record, begins))
        elif isinstance(record, Finding) and self._held and record.step >= self.oldest.step:
            self._marked.add(record.step)

    def pop(self, offset: int) -> tuple[StepReading, bool]:
        """Return the oldest reading with its step as the run counts it, and whether it has findings."""
        reading, _ = self._held.popleft()
        marked = reading.step in self._marked
        if not self._held or self._held[0][0].step != reading.step:
            self._marked.discard(reading.step)
        return replace(reading, step=reading.step + offset), marked


_SMALLEST_BATCH = 10
# One in twenty-five of the script's own calls then meets one of ours, so that its 95th percentile stays what it was.
_SQLITE_SHARE = 0.04


class PointWriter(Protocol):
    def log(self, points: Sequence[Point], prefix: str) -> None:
        """Send points; raises `StabilityError` if they were not taken."""


class DeliveryPace:
    """Rate of one recording's metrics."""

    def __init__(self, uri: str) -> None:
        sqlite = is_sqlite(uri)
        self.share = _SQLITE_SHARE if sqlite else 0.8  # share of the time to use while nothing waits
        self._largest = 200 if sqlite else 1000
        self._rate = 1000.0 if sqlite else 1500.0
        self._free_at = 0.0
        self.batch = self._largest  # largest number of points in a request

    def wait(self, now: float, hurry: bool) -> float:
        """Return seconds until the next request; none in a hurry, when training waits or has ended."""
        return 0.0 if hurry else max(0.0, self._free_at - now)

    def send(self, writer: PointWriter, points: Sequence[Point], prefix: str) -> None:
        """Send a request and learn the store's rate from it."""
        began = time.monotonic()
        try:
            writer.log(points, prefix)
        except StabilityError:
            self.batch = max(_SMALLEST_BATCH, self.batch // 2)  # perhaps it was too much at once
            raise
        now = time.monotonic()
        took = now - began
        if len(points) >= self.batch // 2:  # small ones say nothing about what is possible
            self._rate += 0.3 * (len(points) / max(took, 1e-4) - self._rate)
        self._free_at = now + took * (1 / self.share - 1)
        self.batch = min(self._largest, self.batch * 2)

    def points_in(self, seconds: float) -> float:
        """Return how many points can be sent in this time during training."""
        return self._rate * self.share * seconds


_GATHER_SECONDS = 1.0  # few points wait this long for company
HELD_SECONDS = 2.0  # longest wait of a reading for its findings
_BACKLOG_SECONDS = 5.0  # of sending; points beyond that are postponed
MOST_WAITING = 50_000  # limit for points in memory that wait, and for those postponed
_LARGEST_BATCH = 1000


class Progress(Protocol):
    metrics_until: int
    thinning: dict[str, Any]

    @property
    def offset(self) -> int: ...

    @property
    def prefix(self) -> str:
        """First part of the metric keys of the recording."""

    def save(self) -> None: ...


@dataclass(slots=True)
class PointBatch:
    """Points that are sent together, and the position in the journal after them."""

    points: list[Point]
    until: int
    thinning: dict[str, Any]
    sent: int = 0  # number of points that have arrived


class MetricSink(TimedSink):
    words = "metrics"
    patience = 10.0

    def __init__(
        self, delivered: Progress, writer: PointWriter, pace: DeliveryPace, every: int, layers: LayerMetrics = ""
    ) -> None:
        super().__init__(delivered.metrics_until)
        self.awaited = True  # whether the end of the training waits for the rest
        self._delivered = delivered
        self._writer = writer
        self._pace = pace
        self._thinner = Thinner.resumed(delivered.thinning, layers) if delivered.thinning else Thinner(every, layers)
        self._thinner.every = every  # recordings of older versions may say that fewer were chosen
        self._single_values = SingleValues(delivered.thinning)
        self._fresh: deque[PointBatch] = deque()
        self._postponed: deque[PointBatch] = deque()
        self._dropped = False  # postponed points were dropped: the journal must be read again from `metrics_until` on
        self._open: list[Point] = []
        self._open_since = 0.0
        self._held = HeldReadings()

    @property
    def reached(self) -> int:
        """Position up to which no point waits, except for company."""
        return self._delivered.metrics_until if self._fresh or self._postponed or self._dropped else self.until

    @property
    def full(self) -> bool:
        return _points_in(self._fresh) >= MOST_WAITING

    @property
    def filled(self) -> bool:
        """Whether everything has arrived, including postponed points."""
        return self.done and not self._postponed and not self._dropped

    @property
    def must_be_repeated(self) -> bool:
        """Whether a new sink must read the journal from `metrics_until` on for missing points."""
        return self.done and self._dropped

    def take(self, record: Record) -> None:
        self._held.take(record, self.until)
        if self._held.full:
            self._release()

    def flush(self, over: bool) -> bool:
        """Choose points, and send one request if it is time."""
        full = self.full
        hurry = (over or self.hurried) and self.awaited
        if not full:
            self._choose(over)
        if not over:
            # Keep the newest points for the next requests; postpone the older ones.
            bearable = self._pace.points_in(_BACKLOG_SECONDS)
            while len(self._fresh) > 1 and _points_in(self._fresh) > bearable:
                batch = self._fresh.popleft()
                last = self._postponed[-1] if self._postponed else None
                if last is not None and len(last.points) + len(batch.points) <= _LARGEST_BATCH:
                    last.points += batch.points[batch.sent :]
                    last.until, last.thinning = batch.until, batch.thinning
                else:
                    self._postponed.append(batch)
            if _points_in(self._postponed) > MOST_WAITING:
                self._postponed.clear()
                self._dropped = True
        batches = self._fresh or (None if hurry else self._postponed)
        if batches and self._pace.wait(time.monotonic(), hurry) <= 0:
            self._send(batches)
        elif full:
            return False
        arrived = not full and not self.more and not self._fresh
        self.done = over and arrived
        self.hurried = self.hurried and not arrived
        return full or (hurry and bool(self._fresh))

    def seconds_to_wait(self) -> float:
        waiting = self._fresh or self._postponed
        return self._pace.wait(time.monotonic(), hurry=False) if waiting else float("inf")

    def send_again(self) -> None:
        """Repeat a failed request; an unknown part of it has arrived."""
        if self._fresh:
            self._fresh[0].sent = 0

    def _choose(self, over: bool) -> None:
        """Choose points of readings that were held long enough; at the end of all."""
        hurry = over or self.hurried
        while self._held and not self.more and (hurry or time.time() - self._held.oldest.time > HELD_SECONDS):
            self._release()
        if over and not self.more:
            self._open += self._points_of_charts(self._thinner.rest())
            self._seal()
        elif self._open and (self.hurried or time.monotonic() - self._open_since >= _GATHER_SECONDS):
            self._seal()

    def _release(self) -> None:
        """Choose points of the oldest held reading."""
        if not self._open:
            self._open_since = time.monotonic()
        self._open += self._points_of_charts(self._thinner.points(*self._held.pop(self._delivered.offset)))
        if len(self._open) >= self._pace.batch:
            self._seal()

    def _seal(self) -> None:
        """Make a batch of the chosen points."""
        chosen_until = self.until if self._held.begins is None else self._held.begins
        newest = self._fresh or self._postponed
        behind = newest[-1].until if newest else self._delivered.metrics_until
        if chosen_until > behind or self._open:
            state = {**self._thinner.saved(), **self._single_values.saved()}
            self._fresh.append(PointBatch(self._open, chosen_until, state))
            self._open = []

    def _points_of_charts(self, points: list[Point]) -> list[Point]:
        """Drop non-finite points: MLflow shows no chart of a metric whose last value is not finite."""
        return self._single_values.of_curves([point for point in points if math.isfinite(point.value)])

    def _send(self, batches: deque[PointBatch]) -> None:
        """Send one request; move the position in the journal when all before it has arrived."""
        batch = batches[0]
        points = batch.points[batch.sent : batch.sent + self._pace.batch]
        if points:
            self._pace.send(self._writer, points, self._delivered.prefix)
            batch.sent += len(points)
        if batch.sent < len(batch.points):
            return
        batches.popleft()
        if batches is self._fresh and self._postponed:  # it arrived before the postponed ones
            self._postponed[-1].until, self._postponed[-1].thinning = batch.until, batch.thinning
        elif not self._dropped:
            self._delivered.metrics_until, self._delivered.thinning = batch.until, batch.thinning
            self._delivered.save()


def _points_in(batches: deque[PointBatch]) -> int:
    return sum(len(batch.points) - batch.sent for batch in batches)
