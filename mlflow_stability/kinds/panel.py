"""Shows every observation to the detectors that want it: the only driver, live and in replay.

In: observations in the order in which they were recorded, and resets. Out: events. Guarantees: the same observations
and resets give the same events, whenever and wherever they are shown. A judgement that Ctrl-C ends half-way leaves
the detectors behind it without that step, and the one that was looking begins afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any, TypeAlias

from mlflow_stability.detectors.baseline import Baseline
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.layer_values import is_wanted
from mlflow_stability.detectors.learning_rate_restart import OptimizersOfLosses
from mlflow_stability.detectors.loss_level import LossLevels
from mlflow_stability.detectors.micro_batches import UsualCount, pairs_of
from mlflow_stability.detectors.progress import Losses, Progress
from mlflow_stability.kinds.catalog import default_detectors
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel
from mlflow_stability.vocabulary.measured.observation import Observation, StepReading
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.run.milestone import Reset

new_tuple = tuple.__new__
_Step = Callable[[Any, Point], tuple[Any, Finding | None]]
MOST_LAYOUTS = 256
"""So many tuples of signals are remembered."""
USUAL_Z = 2.0
"""A loss or gradient norm less than this above its level is usual: what stands out is `STANDS_OUT` above it."""


class _DetectorState:
    """A detector, and what it has seen so far of one place."""

    __slots__ = ("detector", "state", "step")

    def __init__(self, detector: Detector, losses: Losses) -> None:
        self.detector = detector
        self.step: _Step = detector.step
        self.go_on(detector.begin(), losses)

    def go_on(self, state: Any, losses: Losses) -> None:
        """Go on from this state, with the losses that all detectors share."""
        self.state = state
        progress = getattr(state, "progress", None)
        if isinstance(progress, Progress):
            progress.losses = losses


class _SignalDetectors:
    """One signal: its baseline, and the detectors that judge it."""

    __slots__ = ("baseline", "before", "detectors", "place", "quantity", "sudden", "tells_level")

    def __init__(self, signal: Signal, baseline: Baseline | None, detectors: list[_DetectorState]) -> None:
        self.quantity, self.place = signal.quantity, signal.place
        self.baseline = baseline
        self.before: float | None = None
        self.detectors = detectors
        self.tells_level = signal.quantity in ("loss", LOSS_LEVEL)
        """Whether it shows if the losses have a level."""
        self.sudden = baseline if signal.quantity in ("loss", "grad_norm") else None
        """The baseline of what a training is rolled back for at the very step at which it rises."""


_Layout: TypeAlias = tuple[tuple[Signal, ...], list[_SignalDetectors | None], list[tuple[int, int, str]]]


class Panel:
    """The detectors of one recording, each with what it has seen so far."""

    def __init__(self, detectors: Sequence[Detector] | None = None, *, level: LossLevel | None = None) -> None:
        self.detectors = tuple(default_detectors() if detectors is None else detectors)
        self._compared = frozenset(quantity for each in self.detectors for quantity in each.compared)
        wanted = {quantity for each in self.detectors for quantity in each.quantities}
        self._wanted = frozenset({*wanted, "loss", LOSS_LEVEL})  # which tell whether the loss has a level
        self._signals: dict[Signal, _SignalDetectors] = {}
        self._states: dict[tuple[int, str], _DetectorState] = {}
        self._layouts: dict[int, _Layout] = {}
        """The detectors of each tuple of signals, by its identity; what is kept here gives its number to no other."""
        self._counts: dict[str, UsualCount] = {}
        """The usual number of micro-batches of each training."""
        self._optimizers = OptimizersOfLosses()
        self._level = level
        """What is known about the level of the losses from outside."""
        self._levels = LossLevels(level)
        self._losses = Losses()

    @property
    def no_level(self) -> NoLevel | None:
        """Why the level of the losses does not measure progress; None where it does, as far as is known."""
        return self._levels.reason

    def judge(self, reading: StepReading) -> list[Finding]:
        """Judge all values of a step, in their order; live and in replay this is the loop."""
        known = self._layouts.get(id(reading.signals))  # a training has a handful of tuples
        if known is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            for index in self._optimizers.losses_with_new_optimizers(reading.signals):
                if self._is_another_level(reading.signals[index], reading.values[index]):
                    self.reset()
            # All of them, before any is relied upon.
            known = self._layouts[id(reading.signals)] = (
                reading.signals,
                [self._detectors_of(each) for each in reading.signals],
                pairs_of([(each.quantity, each.place) for each in reading.signals]),
            )
        values = self._evened(known[2], reading.values) if known[2] else reading.values
        return _judged(known[1], self._levels, self._losses, values, reading.step, reading.attempt, reading.time)

    def is_usual(self, reading: StepReading) -> bool:
        """Whether a step has nothing in it that must be judged at once; nothing is taken in."""
        known = self._layouts.get(id(reading.signals))
        if known is None or not isfinite(sum(reading.values)):
            return False
        for _, count, place in known[2]:
            usual = self._counts.get(place)
            if usual is None or usual.usual != reading.values[count]:
                return False
        for signal, value in zip(known[1], reading.values, strict=True):
            if signal is not None and (baseline := signal.sudden) is not None and not baseline.is_usual(value, USUAL_Z):
                return False
        return True

    def _is_another_level(self, loss: Signal, value: float) -> bool:
        """Whether the first loss under another optimizer is far above what was normal."""
        known = self._signals.get(loss)
        return (
            known is not None and known.baseline is not None and isfinite(value) and known.baseline.is_far_above(value)
        )

    def _evened(self, pairs: Sequence[tuple[int, int, str]], values: Sequence[float]) -> Sequence[float]:
        """The values, with the loss of a step of fewer micro-batches than usual as it would be with all of them."""
        for loss, count, place in pairs:
            usual = self._counts.get(place)
            if usual is None:
                usual = self._counts[place] = UsualCount()
            factor = usual.factor(values[count])
            if factor != 1.0:
                values = (*values[:loss], values[loss] * factor, *values[loss + 1 :])
        return values

    def observe(self, observation: Observation) -> list[Finding]:
        """Judge one value."""
        detectors = self._detectors_of(observation.signal)
        value, at = (observation.value,), (observation.step, observation.attempt, observation.time)
        return _judged([detectors], self._levels, self._losses, value, *at)

    def begin_anew(self) -> None:
        """Forget everything: another start of the training follows."""
        self._states.clear()
        self._counts.clear()
        self._optimizers = OptimizersOfLosses()
        self._levels, self._losses = LossLevels(self._level), Losses()
        self.reset()

    def reset(self) -> None:
        """The training was rolled back: forget everything that weights have a part in, so not the learning rates."""
        self._signals.clear()
        self._losses = self._losses.after_rollback()
        for each in self._states.values():
            each.go_on(each.detector.after_rollback(each.state), self._losses)
        self._layouts.clear()
        self._levels.after_rollback()

    def _detectors_of(self, signal: Signal) -> _SignalDetectors | None:
        found = self._signals.get(signal)
        if found is None and signal.quantity in self._wanted:
            states = [
                self._detector_state(number, "" if detector.across_places else signal.place)
                for number, detector in enumerate(self.detectors)
                if signal.quantity in detector.quantities
                and is_wanted(detector.places, signal)
                and (detector.takes_losses or signal.quantity != "loss")
            ]
            baseline = Baseline() if signal.quantity in self._compared else None
            found = self._signals[signal] = _SignalDetectors(signal, baseline, states)
        return found

    def _detector_state(self, number: int, place: str) -> _DetectorState:
        detector = self._states.get((number, place))
        if detector is None:
            detector = self._states[number, place] = _DetectorState(self.detectors[number], self._losses)
        return detector


def _judged(
    signals: Sequence[_SignalDetectors | None],
    levels: LossLevels,
    losses: Losses,
    values: Sequence[float],
    step: int,
    attempt: int,
    time: float,
) -> list[Finding]:
    """Compare each value with its baseline and let every detector that wants it look."""
    events: list[Finding] = []
    signal: _SignalDetectors | None = None
    detector: _DetectorState | None = None
    try:
        for signal, value in zip(signals, values, strict=True):
            if signal is None:  # most values are only recorded
                continue
            detector, baseline, before = None, signal.baseline, signal.before
            finite = isfinite(value)
            if finite:
                signal.before = value
            if signal.tells_level:
                levels.see(signal.quantity, signal.place, value)
                if finite and signal.quantity == "loss":
                    losses.take(signal.place, step, value, levels.has_level)
            # Made as a tuple is: the generated `__new__` would take as long as half of the detectors.
            if baseline is not None and finite:
                baseline.take(value)
                point = new_tuple(
                    Point,
                    (
                        signal.quantity,
                        signal.place,
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
                        levels.has_level,
                        levels.reason,
                    ),
                )
            else:
                point = new_tuple(
                    Point,
                    (
                        signal.quantity,
                        signal.place,
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
                        levels.has_level,
                        levels.reason,
                    ),
                )
            for detector in signal.detectors:
                detector.state, event = detector.step(detector.state, point)
                if event is not None:
                    events.append(event)
    except BaseException:  # Ctrl-C: what was being changed may be half-changed, and begins afresh
        if detector is not None:
            detector.go_on(detector.detector.begin(), losses)
        elif signal is not None and signal.baseline is not None:
            signal.baseline = Baseline()
        raise
    return events


def replay(records: Iterable[object], detectors: Sequence[Detector] | None = None) -> list[Finding]:
    """The events that the panel found live, found again in a record of readings and resets."""
    panel = Panel(detectors)
    events: list[Finding] = []
    for record in records:
        if isinstance(record, Reset):
            panel.reset()
        elif isinstance(record, StepReading):
            events += panel.judge(record)
    return events
