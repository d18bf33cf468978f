"""Run the detectors over recorded values, live and in replay.

The same observations and resets give the same findings, whenever they are shown. A judgement that Ctrl-C interrupts
leaves the later detectors without that step, and the interrupted one without its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from mlflow_stability.detectors.baseline import Baseline
from mlflow_stability.detectors.detector import ALL, WHOLE, Detector, Point
from mlflow_stability.detectors.growing_weight import HIGHEST_RISE, LossTermCount, TermWeight
from mlflow_stability.detectors.learning_rate_restart import OptimizersOfLosses
from mlflow_stability.detectors.loss_level import LossLevels
from mlflow_stability.detectors.micro_batches import UsualCount, losses_with_counts
from mlflow_stability.detectors.progress import Losses, Progress
from mlflow_stability.kinds.catalog import default_detectors
from mlflow_stability.kinds.loss.nonfinite import NonFiniteDetector
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel
from mlflow_stability.vocabulary.measured.signal import (
    SHARED_TRACK,
    SIDE_BY_SIDE_STEPS,
    Signal,
    StepReading,
    is_whole_model,
)
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Reset

BY_LAYER = frozenset({"adam_rms", "grad_norm", "param_norm", "update_ratio"})
"""Quantities whose values by layer are judged apart from those of the whole model."""
MAX_LAYOUTS = 256  # maximum number of tuples of signals that are remembered
USUAL_Z = 2.0  # a loss or gradient norm less than this above its level is usual: outliers are `OUTLIER_Z` above it
new_tuple = tuple.__new__
_Step = Callable[[Any, Point], tuple[Any, Finding | None]]


def is_wanted(places: str, signal: Signal) -> bool:
    """Return whether a detector of these places looks at a signal."""
    return places == ALL or signal.quantity not in BY_LAYER or (places == WHOLE) == is_whole_model(signal.place)


class _DetectorState:
    __slots__ = ("detector", "state", "step")

    def __init__(self, detector: Detector, losses: Losses) -> None:
        self.detector = detector
        self.step: _Step = detector.step
        self.set(detector.begin(), losses)

    def set(self, state: Any, losses: Losses) -> None:
        self.state = state
        progress = getattr(state, "progress", None)
        if isinstance(progress, Progress):
            progress.losses = losses


class _SignalDetectors:
    """A signal, its baseline, and the detectors that look at it."""

    __slots__ = ("baseline", "before", "detectors", "place", "quantity", "sudden", "tells_level")

    def __init__(self, signal: Signal, baseline: Baseline | None, detectors: list[_DetectorState]) -> None:
        self.quantity, self.place = signal.quantity, signal.place
        self.baseline = baseline
        self.before: float | None = None
        self.detectors = detectors
        self.tells_level = signal.quantity in ("loss", LOSS_LEVEL)
        """Whether it shows if the losses have a level."""
        self.sudden = baseline if signal.quantity in ("loss", "grad_norm") else None
        """The baseline of a signal whose rise is acted upon at once."""


class _Layout(NamedTuple):
    """The detectors of one tuple of signals."""

    signals: tuple[Signal, ...]  # the tuple itself: while it is kept, no other has its id
    detectors: list[_SignalDetectors | None]
    counts: list[tuple[int, int, str]]  # index, index of its micro-batches, and place of each loss
    terms: int | None  # index of the number of terms of the loss
    weight: int | None  # index of the weight of one of them


class Panel:
    def __init__(self, detectors: Sequence[Detector] | None = None, *, level: LossLevel | None = None) -> None:
        self.detectors = tuple(default_detectors() if detectors is None else detectors)
        self._compared = frozenset(quantity for detector in self.detectors for quantity in detector.compared)
        quantities = {quantity for detector in self.detectors for quantity in detector.quantities}
        self._wanted = frozenset({*quantities, "loss", LOSS_LEVEL})
        self._signals: dict[Signal, _SignalDetectors] = {}
        self._states: dict[tuple[int, str], _DetectorState] = {}
        self._layouts: dict[int, _Layout] = {}  # by the id of the tuple of signals
        self._counts: dict[str, UsualCount] = {}  # the usual number of micro-batches of each training
        self._optimizers = OptimizersOfLosses()
        self._terms, self._weight = LossTermCount(), TermWeight()
        self._first_size = 0.0  # size of the first losses
        self._trainings: set[str] = set()  # places of their losses
        self._first_step: int | None = None  # of the newest training
        self._level = level
        self._levels = LossLevels(level)
        self._losses = Losses()

    @property
    def no_level(self) -> NoLevel | None:
        """Why the level of the losses does not measure progress; None where it does."""
        return self._levels.reason

    def judge(self, reading: StepReading) -> list[Finding]:
        layout = self._layouts.get(id(reading.signals))  # a training has a handful of tuples
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            if self._begins_training(reading):
                self.restart()
            for index in self._optimizers.losses_with_new_optimizers(reading.signals):
                if self._is_at_other_level(reading.signals[index], reading.values[index]):
                    self.reset()
            layout = self._layout_of(reading.signals)
        if (layout.terms is not None or layout.weight is not None) and self._means_something_else(layout, reading):
            self.reset()
            layout = self._layout_of(reading.signals)
        values = self._with_usual_counts(layout, reading.values) if layout.counts else reading.values
        return self._judge(layout.detectors, values, reading.step, reading.attempt, reading.time)

    def _layout_of(self, signals: tuple[Signal, ...]) -> _Layout:
        names = [signal.quantity for signal in signals]
        is_shared = any(signal.place == SHARED_TRACK and signal.quantity == "loss" for signal in signals)
        layout = self._layouts[id(signals)] = _Layout(
            signals,
            [
                self._without_comparison(signal)
                if is_shared and (signal.place == SHARED_TRACK or not is_whole_model(signal.place))
                else self._detectors_of(signal)
                for signal in signals
            ],
            losses_with_counts([(signal.quantity, signal.place) for signal in signals]),
            *(names.index(name) if name in names else None for name in ("loss_terms", "loss_weight")),
        )
        return layout

    def is_usual(self, reading: StepReading) -> bool:
        """Return whether a step need not be judged at once, without judging it."""
        layout = self._layouts.get(id(reading.signals))
        if layout is None or not isfinite(sum(reading.values)):
            return False
        for _, count, place in layout.counts:
            usual = self._counts.get(place)
            if usual is None or usual.usual != reading.values[count]:
                return False
        for signal, value in zip(layout.detectors, reading.values, strict=True):
            if signal is not None and (baseline := signal.sudden) is not None and not baseline.is_usual(value, USUAL_Z):
                return False
        return True

    def restart(self) -> None:
        """Forget everything: another start of the training follows."""
        self._states.clear()
        self._counts.clear()
        self._optimizers, self._first_size = OptimizersOfLosses(), 0.0
        self._terms, self._weight = LossTermCount(), TermWeight()
        self._levels, self._losses = LossLevels(self._level), Losses()
        self.reset()

    def reset(self) -> None:
        """Forget what weights have influenced: the training was rolled back."""
        self._signals.clear()
        self._losses = self._losses.after_rollback()
        for detector in self._states.values():
            detector.set(detector.detector.after_rollback(detector.state), self._losses)
        self._layouts.clear()
        self._levels.after_rollback()

    def _begins_training(self, reading: StepReading) -> bool:
        """Whether a training begins here that follows another one, whose layers may have the same names."""
        places = {signal.place for signal in reading.signals if signal.quantity == "loss"}
        new = {place for place in places if is_whole_model(place)} - self._trainings
        self._trainings |= new
        first = self._first_step
        follows = bool(new) and first is not None and reading.step - first > SIDE_BY_SIDE_STEPS
        if new and (first is None or follows):
            self._first_step = reading.step
        return follows

    def _is_at_other_level(self, loss: Signal, value: float, *, after_outliers: bool = False) -> bool:
        signal = self._signals.get(loss)
        baseline = None if signal is None else signal.baseline
        return baseline is not None and isfinite(value) and baseline.is_far_above(value, after_outliers=after_outliers)

    def _means_something_else(self, layout: _Layout, reading: StepReading) -> bool:
        """Whether the loss has other terms or weights, is far above its baseline for that, and has not exploded."""
        values = zip(reading.signals, reading.values, strict=True)
        losses = [(signal, value) for signal, value in values if signal.quantity == "loss"]
        has_changed, growth = False, 1.0
        if layout.terms is not None:
            has_changed = self._terms.has_changed(reading.step, reading.values[layout.terms])
            self._first_size = self._first_size or max((abs(value) for _, value in losses), default=0.0)
        if layout.weight is not None:
            self._weight.see(reading.values[layout.weight], reading.step)
            growth = self._weight.growth(reading.step)
        limit = HIGHEST_RISE * self._first_size
        high = [
            (signal, value)
            for signal, value in losses
            if value < limit and self._is_at_other_level(signal, value, after_outliers=True)
        ]
        explained = (not self._is_at_other_level(loss, value / growth, after_outliers=True) for loss, value in high)
        return bool(high) and (has_changed or (growth > 1 and all(explained)))

    def _with_usual_counts(self, layout: _Layout, values: Sequence[float]) -> Sequence[float]:
        """Scale the losses of steps with another number of micro-batches than usual."""
        for loss, count, place in layout.counts:
            usual = self._counts.get(place)
            if usual is None:
                usual = self._counts[place] = UsualCount()
            factor = usual.factor(values[count])
            if factor != 1.0:
                values = (*values[:loss], values[loss] * factor, *values[loss + 1 :])
        return values

    def _detectors_of(self, signal: Signal) -> _SignalDetectors | None:
        detectors = self._signals.get(signal)
        if detectors is None and signal.quantity in self._wanted:
            states = [
                self._detector_state(number, "" if detector.across_places else signal.place)
                for number, detector in enumerate(self.detectors)
                if signal.quantity in detector.quantities
                and is_wanted(detector.places, signal)
                and (detector.takes_losses or signal.quantity != "loss")
            ]
            baseline = Baseline() if signal.quantity in self._compared else None
            detectors = self._signals[signal] = _SignalDetectors(signal, baseline, states)
        return detectors

    def _without_comparison(self, signal: Signal) -> _SignalDetectors | None:
        """Return the detectors of a signal of unrelated trainings, which judge each value by itself."""
        numbers = [at for at, detector in enumerate(self.detectors) if isinstance(detector, NonFiniteDetector)]
        numbers = [at for at in numbers if signal.quantity in self.detectors[at].quantities]
        states = [self._detector_state(at, signal.place) for at in numbers if is_wanted(WHOLE, signal)]
        return _SignalDetectors(signal, None, states) if states else None

    def _detector_state(self, number: int, place: str) -> _DetectorState:
        detector = self._states.get((number, place))
        if detector is None:
            detector = self._states[number, place] = _DetectorState(self.detectors[number], self._losses)
        return detector

    def _judge(
        self,
        signals: Sequence[_SignalDetectors | None],
        values: Sequence[float],
        step: int,
        attempt: int,
        time: float,
    ) -> list[Finding]:
        """Compare each value with its baseline, and run the detectors that look at it."""
        levels, losses = self._levels, self._losses
        findings: list[Finding] = []
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
                z, accepted, center, scale, tail, logarithmic = 0.0, finite, 0.0, 0.0, 0.0, True
                if baseline is not None and finite:
                    baseline.take(value)
                    z, accepted, center = baseline.z, baseline.accepted, baseline.center
                    scale, tail, logarithmic = baseline.scale, baseline.tail, baseline.logarithmic
                of_signal = (signal.quantity, signal.place, step, value, attempt, time, finite, before)
                of_baseline = (z, accepted, center, scale, tail, logarithmic, levels.has_level, levels.reason)
                # `Point(...)` would take as long as half of the detectors.
                point = new_tuple(Point, of_signal + of_baseline)
                for detector in signal.detectors:
                    detector.state, finding = detector.step(detector.state, point)
                    if finding is not None:
                        findings.append(finding)
        except BaseException:  # after Ctrl-C, the state that was being changed may be inconsistent
            if detector is not None:
                detector.set(detector.detector.begin(), losses)
            elif signal is not None and signal.baseline is not None:
                signal.baseline = Baseline()
            raise
        return findings


def replay(records: Iterable[object], detectors: Sequence[Detector] | None = None) -> list[Finding]:
    """Return the findings of a record of readings and resets, as they were found live."""
    panel = Panel(detectors)
    findings: list[Finding] = []
    for record in records:
        if isinstance(record, Reset):
            panel.reset()
        elif isinstance(record, StepReading):
            findings += panel.judge(record)
    return findings
