"""Fills in the points of metrics that were left out while the store was too slow for them.

In: the journal of a recording whose metrics have arrived, and where its interval was raised. Out: the points that the
asked interval gives and the raised one did not. Extremes (`loss_max`) are not among them: those that were sent tell of
all steps between two of their points already. Guarantees: nothing is read where the interval was never raised; memory
is bounded; the store is left to others half of the time; after a kill the same points are sent again, which the store
recognises.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.streams.held_readings import HeldReadings
from mlflow_stability.courier.streams.metric_stream import DeliveryPace, PointWriter
from mlflow_stability.errors import StabilityError
from mlflow_stability.journal.follower import JournalFollower
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.tracking.write import LayerMetrics, Point, SingleValues, Thinner, is_extreme, is_of_the_script
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding

_READ_AT_ONCE = 500


class MissingPointStream:
    """The points that one recording's metrics lack."""

    def __init__(
        self, delivered: Delivered, writer: PointWriter, pace: DeliveryPace, asked: int, layers: LayerMetrics = ""
    ) -> None:
        self.done = False
        self._delivered = delivered
        self._writer = writer
        self._pace = pace
        self._layers: LayerMetrics = layers
        self._asked = asked
        self._found: Iterator[list[Point]] | None = None
        self._points: list[Point] = []
        self._read_all = False

    @property
    def reached(self) -> int:
        """Everything has arrived before anything is filled in."""
        return self._delivered.metrics_until

    def advance(self, over: bool) -> bool:
        """Read on, and send what was found; `over`: all other points have arrived."""
        if self._delivered.filled_until == self._delivered.metrics_until:
            self.done = True
        if self.done or not over:
            return False
        if self._found is None:
            self._found = self._missing()
        if len(self._points) < self._pace.batch and not self._read_all:
            found = next(self._found, None)
            self._read_all = found is None
            self._points += found or []
            return True
        if self._points and self._pace.wait(time.monotonic(), hurry=False) > 0:
            return False
        self._send()
        if self._read_all and not self._points:
            self.done = True
            self._delivered.filled_until = self._delivered.metrics_until
            self._delivered.save()
        return not self.done

    def seconds_to_wait(self) -> float:
        """When to come back for points that wait for their turn."""
        return self._pace.wait(time.monotonic(), hurry=False) if self._points else float("inf")

    def _send(self) -> None:
        points = self._points[: self._pace.batch]
        if not points:
            return
        began = time.monotonic()
        try:
            self._writer.log(points, self._delivered.section)
        except StabilityError:
            self._pace.failed()
            raise
        now = time.monotonic()
        self._pace.sent(len(points), now - began, now)
        del self._points[: len(points)]

    def _missing(self) -> Iterator[list[Point]]:
        """What is missing, read by read: the choice is made again as it was made, and as it was asked for."""
        raised = [(int(place), int(every)) for place, every in self._delivered.thinning.get("raised", ())]
        if not raised:
            return
        # Of what the raised interval saw one value only, nothing was sent.
        unsent = {Signal(quantity, place) for (quantity, place, *_), _ in self._delivered.thinning.get("held", ())}
        made, asked = Thinner(self._asked, self._layers), Thinner(self._asked, self._layers)
        curves = SingleValues()
        held = HeldReadings()
        follower, position = JournalFollower(self._delivered.folder / JOURNAL), 0

        def chosen() -> list[Point]:
            reading, begins, marked = held.pop()
            while raised and begins >= raised[0][0]:
                made.every = raised.pop(0)[1]
            counted = replace(reading, step=reading.step + self._delivered.offset)
            return added(asked.points(counted, marked), made.points(counted, marked))

        def added(wanted: Sequence[Point], sent: Sequence[Point]) -> list[Point]:
            known = {(each.signal, each.step) for each in sent if each.signal not in unsent}
            drawn = curves.of_curves([each for each in wanted if math.isfinite(each.value)])
            return [each for each in drawn if (each.signal, each.step) not in known and not is_extreme(each.signal)]

        while entries := follower.read(_READ_AT_ONCE):
            found: list[Point] = []
            for entry in entries:
                if isinstance(entry.record, StepReading) and not is_of_the_script(entry.record):
                    held.add(entry.record, position)
                    if held.full:
                        found += chosen()
                elif isinstance(entry.record, Finding):
                    held.mark(entry.record.step)
                position = entry.end
            yield found
        found = []
        while held:
            found += chosen()
        yield found + added(asked.rest(), made.rest())
