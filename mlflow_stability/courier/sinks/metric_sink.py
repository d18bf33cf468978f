"""Delivers thinned points of a journal to MLflow's metric tables, at a bounded rate.

In: records, from the position up to which metrics were delivered. Out: metrics. Guarantees: after a kill the same
points are sent again, which the store recognises; memory is bounded; where the store is too slow, fewer points are
chosen, and the run says so.

On a SQLite file every writer makes all others wait, the script's own `log_metric` included. There batches are small,
and during training at most one twenty-fifth of the time is used.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mlflow_stability.courier.sinks.sink import Sink
from mlflow_stability.errors import StabilityError
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.store import is_sqlite
from mlflow_stability.tracking.write import LayerMetrics, Point, SingleValues, Thinner, is_of_the_script
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding

HELD_READINGS = 128
"""So many readings are held: events come up to half as many later."""


class HeldReadings:
    """The newest measured steps of one recording, and where each begins in the journal."""

    def __init__(self) -> None:
        self._held: deque[tuple[StepReading, int]] = deque()
        self._marked: set[int] = set()
        """The steps of those that have events."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether the oldest one can go."""
        return len(self._held) > HELD_READINGS

    @property
    def oldest(self) -> StepReading:
        """The one that goes next."""
        return self._held[0][0]

    @property
    def begins(self) -> int | None:
        """Where the oldest one begins; None where nothing is held."""
        return self._held[0][1] if self._held else None

    def take(self, record: Record, begins: int) -> None:
        """Hold a measured step, or mark the step of an event."""
        if isinstance(record, StepReading):
            if not is_of_the_script(record):
                self._held.append((record, begins))
        elif isinstance(record, Finding) and self._held and record.step >= self.oldest.step:
            self._marked.add(record.step)

    def pop(self, offset: int) -> tuple[StepReading, bool]:
        """The oldest reading, its step as the run counts it, and whether an event happened at its step."""
        reading, _ = self._held.popleft()
        marked = reading.step in self._marked
        if not self._held or self._held[0][0].step != reading.step:
            self._marked.discard(reading.step)
        return replace(reading, step=reading.step + offset), marked


_SMALLEST_BATCH = 10
# One in twenty-five of the script's own calls then meets one of ours, so that its 95th percentile stays what it was.
_SQLITE_SHARE = 0.04
_KNOWN_AFTER = 3  # requests


class PointWriter(Protocol):
    """The way of points into a run."""

    def log(self, points: Sequence[Point], section: str) -> None:
        """Send some; a `StabilityError` if they were not taken."""


class DeliveryPace:
    """The rhythm of one recording's metrics."""

    def __init__(self, uri: str, share: float | None = None) -> None:
        """`share`: of the time, that may be used while nobody is in a hurry."""
        sqlite = is_sqlite(uri)
        self._share = share or (_SQLITE_SHARE if sqlite else 0.8)
        self._largest = 200 if sqlite else 1000
        self._rate = 1000.0 if sqlite else 1500.0
        self._free_at = 0.0
        self._measured = 0
        self.batch = self._largest
        """How many points a request may hold."""

    def wait(self, now: float, hurry: bool) -> float:
        """Seconds until the next request may go; in a hurry, when training waits or has ended, none."""
        return 0.0 if hurry else max(0.0, self._free_at - now)

    def send(self, writer: PointWriter, points: Sequence[Point], section: str) -> None:
        """Send a request and learn from it how much the store can take."""
        began = time.monotonic()
        try:
            writer.log(points, section)
        except StabilityError:
            self.batch = max(_SMALLEST_BATCH, self.batch // 2)  # perhaps it was too much at once
            raise
        now = time.monotonic()
        took = now - began
        if len(points) >= self.batch // 2:  # small ones say nothing about what is possible
            self._rate += 0.3 * (len(points) / max(took, 1e-4) - self._rate)
            self._measured += 1
        self._free_at = now + took * (1 / self._share - 1)
        self.batch = min(self._largest, self.batch * 2)

    @property
    def is_known(self) -> bool:
        """Whether the speed of the store was measured, not only guessed."""
        return self._measured >= _KNOWN_AFTER

    def points_in(self, seconds: float) -> float:
        """How many points can be sent in this time while training lives."""
        return self._rate * self._share * seconds


_GATHER_SECONDS = 1.0  # few points wait this long for company
HELD_SECONDS = 2.0
"""For so long at most a reading is held for the events of its step."""
_BACKLOG_SECONDS = 5.0  # of sending; with more than that waiting, perhaps too many points are chosen
_MOST_OF_CAPACITY = 0.5  # the share of what the store can take that new points may need


class Progress(Protocol):
    """How far the delivery is."""

    metrics_until: int
    thinning: dict[str, Any]

    @property
    def offset(self) -> int:
        """What is added to steps."""

    @property
    def section(self) -> str:
        """The section of the recording."""

    def save(self) -> None:
        """Keep it."""


@dataclass(frozen=True, slots=True)
class PointBatch:
    """Points that are sent together, and where the journal is taken up again once they have arrived."""

    points: list[Point]
    until: int
    thinning: dict[str, Any]


class MetricSink(Sink):
    """The metrics of one recording."""

    words = "metrics"

    def __init__(
        self, delivered: Progress, writer: PointWriter, pace: DeliveryPace, every: int, layers: LayerMetrics = ""
    ) -> None:
        super().__init__(delivered.metrics_until)
        self.done = False
        self.hurried = False
        self._delivered = delivered
        self._writer = writer
        self._pace = pace
        self._thinner = Thinner.resumed(delivered.thinning, layers) if delivered.thinning else Thinner(every, layers)
        self._single_values = SingleValues(delivered.thinning)
        self._batches: deque[PointBatch] = deque()
        self._waiting = 0
        self._sent_of_first = 0
        self._open: list[Point] = []
        self._open_since = 0.0
        self._held = HeldReadings()
        self._raised: list[list[int]] = list(delivered.thinning.get("raised", ()))
        """Where in the journal fewer points were chosen, and at which interval from there on."""
        self._adapted_at = 0.0

    @property
    def reached(self) -> int:
        """The position up to which no point waits; what is only held back for company does not count."""
        return self.until if not self._batches else self._delivered.metrics_until

    @property
    def every(self) -> int:
        """Every how many steps a point is chosen at the moment."""
        return self._thinner.every

    @property
    def full(self) -> bool:
        """Whether more points wait than the store can take in a while."""
        return self._waiting >= self._pace.points_in(2 * _BACKLOG_SECONDS)

    def take(self, record: Record) -> None:
        """Hold a step until its events are known, and choose from the oldest one held."""
        self._held.take(record, self.until)
        if self._held.full:
            self._release()

    def flush(self, over: bool) -> bool:
        """Choose what is due, and send one request if it is time to."""
        full = self.full
        hurry = over or self.hurried
        if not full:
            self._choose(over, hurry)
        if not over:
            self._adapt()
        if self._batches and self._pace.wait(time.monotonic(), hurry) <= 0:
            self._send(self._batches[0])
        elif full:
            return False
        arrived = not full and not self.more and not self._batches
        self.done = over and arrived
        self.hurried = self.hurried and not arrived
        return full or (hurry and bool(self._batches))

    def seconds_to_wait(self) -> float:
        """When to come back for points that wait only for their turn."""
        return self._pace.wait(time.monotonic(), hurry=False) if self._batches else float("inf")

    def send_again(self) -> None:
        """Begin the request that failed anew, where it is not known how much of it has arrived."""
        self._sent_of_first = 0

    def _choose(self, over: bool, hurry: bool) -> None:
        """Choose from readings that were held long enough; at the end from all."""
        while self._held and not self.more and (hurry or time.time() - self._held.oldest.time > HELD_SECONDS):
            self._release()
        if over and not self.more:
            self._open += self._charted(self._thinner.rest())
            self._seal()
        elif self._open and (self.hurried or time.monotonic() - self._open_since >= _GATHER_SECONDS):
            self._seal()

    def _release(self) -> None:
        """Choose from the oldest held reading, now that all is known of its step."""
        if not self._open:
            self._open_since = time.monotonic()
        self._open += self._charted(self._thinner.points(*self._held.pop(self._delivered.offset)))
        if len(self._open) >= self._pace.batch:
            self._seal()

    def _seal(self) -> None:
        """Make a batch of what was chosen up to here."""
        chosen_until = self.until if self._held.begins is None else self._held.begins
        behind = self._batches[-1].until if self._batches else self._delivered.metrics_until
        if chosen_until > behind or self._open:
            self._batches.append(PointBatch(self._open, chosen_until, self._saved()))
            self._waiting += len(self._open)
            self._open = []

    def _charted(self, points: list[Point]) -> list[Point]:
        """The points that are drawn: MLflow shows no chart at all of a metric whose last value is not finite."""
        return self._single_values.of_curves([each for each in points if math.isfinite(each.value)])

    def _saved(self) -> dict[str, Any]:
        return {**self._thinner.saved(), **self._single_values.saved(), "raised": self._raised}

    def _send(self, batch: PointBatch) -> None:
        """One request; the position in the journal moves on when all of the batch has arrived."""
        points = batch.points[self._sent_of_first : self._sent_of_first + self._pace.batch]
        if points:
            self._pace.send(self._writer, points, self._delivered.section)
            self._sent_of_first += len(points)
        if self._sent_of_first >= len(batch.points):
            self._batches.popleft()
            self._waiting -= len(batch.points)
            self._sent_of_first = 0
            self._delivered.metrics_until, self._delivered.thinning = batch.until, batch.thinning
            self._delivered.save()

    def _adapt(self) -> None:
        """Choose fewer points, half of them or a quarter…, if more come in than the store can take."""
        if not self._pace.is_known or self._waiting < self._pace.points_in(_BACKLOG_SECONDS):
            return
        times = [batch.points[0].time for batch in self._batches if batch.points]
        span = times[-1] - times[0]
        if times[0] < self._adapted_at or span <= 0:  # these were chosen before the last change
            return
        arriving = (self._waiting - len(self._batches[-1].points)) / span
        bearable = _MOST_OF_CAPACITY * self._pace.points_in(1.0)
        if arriving > bearable:
            self._seal()
            self._thinner.every *= 2 ** math.ceil(math.log2(arriving / bearable))
            self._raised = [*self._raised, [self._batches[-1].until, self._thinner.every]]
            # The batch before the change says so too: a courier that goes on from there chooses the same points.
            self._batches[-1].thinning.update(every=self._thinner.every, raised=self._raised)
            self._adapted_at = times[-1]
