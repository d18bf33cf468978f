"""Fills in the points of metrics that were left out while the store was too slow for them.

In: all records of a recording whose metrics have arrived, and where its interval was raised. Out: the points that the
asked interval gives and the raised one did not. Extremes (`loss_max`) are not among them: those that were sent tell of
all steps between two of their points already. Guarantees: nothing is read where the interval was never raised; memory
is bounded; the store is left to others half of the time; after a kill the same points are sent again, which the store
recognises.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.metric_sink import DeliveryPace, HeldReadings, PointWriter
from mlflow_stability.courier.sinks.sink import Sink
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.write import LayerMetrics, Point, SingleValues, Thinner, is_extreme
from mlflow_stability.vocabulary.measured import Signal


class MissingPoints(Sink):
    """The points that one recording's metrics lack; to be made when all others have arrived."""

    def __init__(
        self, delivered: Delivered, writer: PointWriter, pace: DeliveryPace, asked: int, layers: LayerMetrics = ""
    ) -> None:
        super().__init__()
        self._raised = [(int(place), int(every)) for place, every in delivered.thinning.get("raised", ())]
        """Where the interval was raised, and to how much; the places that were not reached yet."""
        self.done = not self._raised or delivered.filled_until == delivered.metrics_until
        self._delivered = delivered
        self._writer = writer
        self._pace = pace
        # The choice is made again as it was made, and as it was asked for.
        self._made, self._asked = Thinner(asked, layers), Thinner(asked, layers)
        self._curves = SingleValues()
        self._held = HeldReadings()
        # Of what the raised interval saw one value only, nothing was sent.
        self._unsent = {Signal(quantity, place) for (quantity, place, *_), _ in delivered.thinning.get("held", ())}
        self._points: list[Point] = []
        self._all_found = False

    @property
    def full(self) -> bool:
        """Whether there is enough for a request."""
        return len(self._points) >= self._pace.batch

    def take(self, record: Record) -> None:
        """Find what is missing of the oldest step that is held for its events."""
        self._held.take(record, self.until)
        if self._held.full:
            self._release()

    def flush(self) -> bool:
        """Send a request of what was found; True if there is more to send."""
        if not self.more and not self.full and not self._all_found:
            self._all_found = True
            while self._held:
                self._release()
            self._add(self._asked.rest(), self._made.rest())
        if not (self.full or self._all_found) or self.seconds_to_wait() > 0:
            return False
        points = self._points[: self._pace.batch]
        if points:
            self._pace.send(self._writer, points, self._delivered.section)
            del self._points[: len(points)]
        if self._all_found and not self._points:
            self.done = True
            self._delivered.filled_until = self._delivered.metrics_until
            self._delivered.save()
        return not self.done

    def seconds_to_wait(self) -> float:
        """When to come back for points that wait for their turn."""
        return self._pace.wait(time.monotonic(), hurry=False)

    def _release(self) -> None:
        while self._raised and (self._held.begins or 0) >= self._raised[0][0]:
            self._made.every = self._raised.pop(0)[1]
        reading, marked = self._held.pop(self._delivered.offset)
        self._add(self._asked.points(reading, marked), self._made.points(reading, marked))

    def _add(self, wanted: Sequence[Point], sent: Sequence[Point]) -> None:
        known = {(each.signal, each.step) for each in sent if each.signal not in self._unsent}
        drawn = self._curves.of_curves([each for each in wanted if math.isfinite(each.value)])
        self._points += [
            each for each in drawn if (each.signal, each.step) not in known and not is_extreme(each.signal)
        ]
