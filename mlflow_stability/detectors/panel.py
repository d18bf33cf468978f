"""Shows every observation to the detectors that want it: the only driver, live and in replay.

In: observations in the order in which they were recorded, and resets. Out: events. Guarantees: the same observations
and resets give the same events, whenever and wherever they are shown. A judgement that Ctrl-C ends half-way leaves
the detectors behind it without that step, and the one that was looking begins afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any

from mlflow_stability.detectors.catalog import default_detectors
from mlflow_stability.detectors.engine.adversarial import Turns
from mlflow_stability.detectors.engine.baseline import Baseline
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.layer_values import is_wanted
from mlflow_stability.vocabulary.measured.observation import Observation, StepReading
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result.event import Event
from mlflow_stability.vocabulary.run.milestone import Reset

new_tuple = tuple.__new__
_Step = Callable[[Any, Point], tuple[Any, Event | None]]
MOST_LAYOUTS = 256
"""So many tuples of signals are remembered."""


class _Seat:
    """A detector's place at the table: what it has seen so far of one place."""

    __slots__ = ("begin", "state", "step")

    def __init__(self, detector: Detector) -> None:
        self.step: _Step = detector.step
        self.begin = detector.begin
        self.state = detector.begin()


class _Desk:
    """Everything about one signal: its baseline, and the detectors that want to see it."""

    __slots__ = ("baseline", "before", "place", "quantity", "seats")

    def __init__(self, signal: Signal, baseline: Baseline | None, seats: list[_Seat]) -> None:
        self.quantity, self.place = signal.quantity, signal.place
        self.baseline = baseline
        self.before: float | None = None
        self.seats = seats


class Panel:
    """The detectors of one recording, each with what it has seen so far."""

    def __init__(self, detectors: Sequence[Detector] | None = None, *, players: bool = False) -> None:
        self.detectors = tuple(default_detectors() if detectors is None else detectors)
        self._compared = frozenset(quantity for each in self.detectors for quantity in each.compared)
        wanted = {quantity for each in self.detectors for quantity in each.quantities}
        self._wanted = frozenset({*wanted, "loss"})  # whose turns tell what the others' values mean
        self._desks: dict[Signal, _Desk] = {}
        self._seats: dict[tuple[int, str], _Seat] = {}
        self._layouts: dict[int, tuple[tuple[Signal, ...], list[_Desk | None]]] = {}
        """The desks of each tuple of signals, by its identity; what is kept here gives its number to no other."""
        self._players = players
        """Whether trainings are known to take turns, also where their losses are not shown."""
        self._turns = Turns(taken=players)

    def judge(self, reading: StepReading) -> list[Event]:
        """Judge all values of a step, in their order; live and in replay this is the loop."""
        known = self._layouts.get(id(reading.signals))  # a training has a handful of tuples
        if known is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            # All of them, before any is relied upon.
            known = self._layouts[id(reading.signals)] = reading.signals, [self._desk(each) for each in reading.signals]
        return _judged(known[1], self._turns, reading.values, reading.step, reading.attempt, reading.time)

    def observe(self, observation: Observation) -> list[Event]:
        """Judge one value."""
        desk = self._desk(observation.signal)
        value = (observation.value,)
        return _judged([desk], self._turns, value, observation.step, observation.attempt, observation.time)

    def reset(self) -> None:
        """Forget everything: what comes now is judged by itself."""
        self._desks.clear()
        self._seats.clear()
        self._layouts.clear()
        self._turns = Turns(taken=self._players)

    def _desk(self, signal: Signal) -> _Desk | None:
        desk = self._desks.get(signal)
        if desk is None and signal.quantity in self._wanted:
            seats = [
                self._seat(number, "" if detector.across_places else signal.place)
                for number, detector in enumerate(self.detectors)
                if signal.quantity in detector.quantities and is_wanted(detector.places, signal)
            ]
            baseline = Baseline() if signal.quantity in self._compared else None
            desk = self._desks[signal] = _Desk(signal, baseline, seats)
        return desk

    def _seat(self, number: int, place: str) -> _Seat:
        seat = self._seats.get((number, place))
        if seat is None:
            seat = self._seats[number, place] = _Seat(self.detectors[number])
        return seat


def _judged(
    desks: Sequence[_Desk | None], turns: Turns, values: Sequence[float], step: int, attempt: int, time: float
) -> list[Event]:
    """Compare each value with its baseline and let every detector that wants it look."""
    events: list[Event] = []
    desk: _Desk | None = None
    seat: _Seat | None = None
    try:
        for desk, value in zip(desks, values, strict=True):
            if desk is None:  # most values are only recorded
                continue
            seat, baseline, before = None, desk.baseline, desk.before
            finite = isfinite(value)
            if finite:
                desk.before = value
            if desk.quantity == "loss":
                turns.take(desk.place)
            # Made as a tuple is: the generated `__new__` would take as long as half of the detectors.
            if baseline is not None and finite:
                baseline.take(value)
                point = new_tuple(
                    Point,
                    (
                        desk.quantity,
                        desk.place,
                        step,
                        value,
                        attempt,
                        time,
                        True,
                        before,
                        baseline.z,
                        baseline.accepted,
                        baseline.center,
                        baseline.scale,
                        baseline.tail,
                        baseline.logarithmic,
                        turns.taken,
                    ),
                )
            else:
                point = new_tuple(
                    Point,
                    (
                        desk.quantity,
                        desk.place,
                        step,
                        value,
                        attempt,
                        time,
                        finite,
                        before,
                        0.0,
                        finite,
                        0.0,
                        0.0,
                        0.0,
                        True,
                        turns.taken,
                    ),
                )
            for seat in desk.seats:
                seat.state, event = seat.step(seat.state, point)
                if event is not None:
                    events.append(event)
    except BaseException:  # Ctrl-C: what was being changed may be half-changed, and begins afresh
        if seat is not None:
            seat.state = seat.begin()
        elif desk is not None and desk.baseline is not None:
            desk.baseline = Baseline()
        raise
    return events


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
