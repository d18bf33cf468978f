"""Shows every observation to the detectors that want it: the only driver, live and in replay.

In: observations in the order in which they were recorded, and resets. Out: events. Promised: the same observations
and resets give the same events, whenever and wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mlflow_stability.detectors.catalog import default_detectors
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.vocabulary.event import Event
from mlflow_stability.vocabulary.milestone import Reset
from mlflow_stability.vocabulary.observation import Observation, StepReading


class Panel:
    """The detectors of one recording, each with what it has seen so far."""

    def __init__(self, detectors: Sequence[Detector] | None = None) -> None:
        self.detectors = tuple(default_detectors() if detectors is None else detectors)
        self._wanting: dict[str, list[tuple[int, Detector]]] = {}
        for number, detector in enumerate(self.detectors):
            for quantity in detector.quantities:
                self._wanting.setdefault(quantity, []).append((number, detector))
        self._states: dict[tuple[int, str], Any] = {}

    def judge(self, reading: StepReading) -> Iterator[Event]:
        """Judge all values of a step, in their order; live and in replay this is the loop."""
        for signal, value in zip(reading.signals, reading.values, strict=True):
            if signal.quantity in self._wanting:  # most values are only recorded
                yield from self.observe(Observation(signal, reading.step, value, reading.attempt, reading.time))

    def observe(self, observation: Observation) -> list[Event]:
        """Judge one value."""
        wanting = self._wanting.get(observation.signal.quantity)
        if not wanting:
            return []
        place = observation.signal.place
        point = Point(
            observation.signal.quantity,
            place,
            observation.step,
            observation.value,
            observation.attempt,
            observation.time,
        )
        events = []
        for number, detector in wanting:
            key = (number, place)
            state = self._states.get(key)
            if state is None:
                state = detector.begin()
            self._states[key], event = detector.step(state, point)
            if event is not None:
                events.append(event)
        return events

    def reset(self) -> None:
        """Forget everything: what comes now is judged by itself."""
        self._states.clear()


def replay(records: Iterable[object], detectors: Sequence[Detector] | None = None) -> list[Event]:
    """The events that the panel found live, found again in a record of readings and resets."""
    panel = Panel(detectors)
    events: list[Event] = []
    for record in records:
        if isinstance(record, Reset):
            panel.reset()
        elif isinstance(record, StepReading):
            events += panel.judge(record)
    return events
