"""Detect a validation loss that rises while the training loss falls."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.turning_point import chance_turn_share, training_since, turn_share
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Moves, Symptom
from mlflow_stability.detectors.loss_level import stays_at_chance
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts, rises_beyond
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import above


@dataclass(slots=True)
class OverfittingState:
    total: float = 0.0  # sum of the training losses since the last validation
    count: int = 0  # number of these losses
    last: deque[float] = field(default_factory=deque)  # the last validation losses
    last_two: tuple[float, float] | None = None
    bends: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    """Distances of validation losses from the straight line through the two before: their noise."""
    best: float | None = None
    best_step: int = -1
    train_at_best: float | None = None
    reported: bool = False


@dataclass(frozen=True, slots=True)
class BestStepFacts(Facts):
    """A model that was best at an earlier step: what all findings of overfitting know."""

    best: float  # The best value: a loss in its unit, an accuracy as a share
    best_step: int  # The step of that value


@dataclass(frozen=True, slots=True)
class OverfittingFacts(BestStepFacts):
    """A validation loss that rises while the training loss falls."""

    kind: ClassVar[str] = "overfitting"
    metrics = ("val_loss", "best", "best_step", "loss")

    val_loss: float  # The validation loss
    loss: float  # The mean training loss since the validation before
    loss_at_best: float  # The mean training loss before the best validation
    threshold: float  # Minimum ratio to the best validation loss

    @property
    def exceeds(self) -> float | None:
        return rises_beyond(self.val_loss, self.best, self.threshold)

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"The validation loss is {self.val_loss:.4g} at {unit} {step}, "
            f"{above(self.val_loss / self.best - 1, 'its best')} of {self.best:.4g} at {unit} {self.best_step}, while "
            f"the training loss fell from {self.loss_at_best:.4g} to {self.loss:.4g}."
        )


@dataclass(frozen=True, slots=True)
class LastBelowBestFacts(BestStepFacts):
    """What findings of overfitting know of a whole curve."""

    metrics = ("best", "best_step", "last")

    signal: str  # The validation loss or accuracy, by the name that the log gives it
    last: float  # Its value at the end


@dataclass(frozen=True, slots=True)
class ValidationRiseFacts(LastBelowBestFacts):
    """A validation loss that rose from its best and stayed above it, while the training loss fell."""

    kind: ClassVar[str] = "validation_rise"

    at_best: float  # The single validation loss at the best step; `best` is the median of a stretch
    threshold: float  # Minimum rise above the best, as a share of it; for losses above zero
    training: str  # The training loss, by the name that the log gives it
    training_at_best: float  # The training loss at the best step, in its unit
    training_loss: float  # The training loss at the end, in its unit
    is_fall_hidden: bool  # Whether noise would hide a fall of the training loss, and it only did not rise

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        by = f" (+{self.last / self.best - 1:.0%}, threshold {self.threshold:.0%})" if self.best > 0 else ""
        about = "" if math.isclose(self.best, self.at_best, rel_tol=1e-3) else "about "  # the median of several
        return (
            f"{self.signal} rose from {about}{self.best:.4g} at {unit} {self.best_step} to {self.last:.4g} at the "
            f"end{by} {self._beside()}."
        )

    def _beside(self) -> str:
        """What the training loss did meanwhile."""
        if self.is_fall_hidden:
            return f"while {self.training} did not rise; a fall is hidden in its noise"
        by = f" from {self.training_at_best:.4g} to {self.training_loss:.4g}"
        if self.training_loss > 0:
            by = f" by {1 - self.training_loss / self.training_at_best:.0%}"
        return f"while {self.training} fell{by}"


@dataclass(frozen=True, slots=True)
class Overfitting(Detector):
    """The validation loss rises while the training loss still falls.

    What it sees: {in_a_row} validation losses in a row at least {smallest_rise:rise} above the best one, and by
    {beyond_noise} times what their own noise moves them. Where only one such distance is known, that factor is
    {few_bends:percent} higher. Meanwhile the training loss has fallen by {train_fell:fall} since the best one and is
    not at chance level. The finding ends when the validation loss is within {over:rise} of the best one.

    Why it matters: from the best step on the model memorises its training data; later weights generalise worse.

    What to try: keep the weights of the best step; stop there; use more or augmented data, dropout, weight decay, or a
    smaller model.

    When it is wrong: validation data that differs from the training data. Accuracy can still rise while the validation
    loss rises.

    Reference: Prechelt, Early stopping - but when? (1998)
    """

    smallest_rise: float = 1.10  # minimum ratio of the validation loss to the best one
    in_a_row: int = 3  # number of validation losses in a row that must be that high
    beyond_noise: float = 3.2
    """Minimum distance above the best, as a multiple of the usual distance of a validation loss from the line through
    the two before it. The default is 5.3σ of its noise."""
    few_bends: float = 3.0
    """Relative increase of `beyond_noise` where only one such distance is known; half of it with two, and so on."""
    train_fell: float = 0.98  # maximum training loss as a share of its value at the best validation loss
    over: float = 1.02  # at or below this multiple of the best validation loss the finding ends

    kind = "overfitting"
    noun = "overfitting"
    symptom = Symptom.OVERFITTING
    order = 90
    quantities = ("loss", "val_loss")
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "power", "beyond_noise": "times"}
    remedies = (Remedy(Action.KEEP_BEST_WEIGHTS), Remedy(Action.USE_MORE_DATA), Remedy(Action.ADD_REGULARISATION))
    state_type = OverfittingState

    def step(self, state: OverfittingState, point: Point) -> tuple[OverfittingState, Finding | None]:
        if not point.finite or not point.has_level:
            return state, None
        if point.quantity == "loss":
            state.total += point.value
            state.count += 1
            return state, None
        train = state.total / state.count if state.count else None
        state.total, state.count = 0.0, 0
        value = point.value
        if state.last_two is not None:
            state.bends.append(abs(value - 2 * state.last_two[1] + state.last_two[0]))
        state.last_two = (value if point.before is None else point.before, value)
        if state.best is None or value < state.best:
            state.best, state.best_step = value, point.step
            state.train_at_best = train
            state.last.clear()
            state.reported = False
            return state, None
        state.last.append(value)
        if len(state.last) > self.in_a_row:
            state.last.popleft()
        best = state.best
        if state.reported:
            state.reported = not (best > 0 and value <= best * self.over)
            return state, None
        if best <= 0 or len(state.last) < self.in_a_row or train is None or state.train_at_best is None:
            return state, None
        lowest = min(state.last)
        noise = median(state.bends) * (1 + self.few_bends / len(state.bends))
        high = lowest >= best * self.smallest_rise and lowest - best >= self.beyond_noise * noise
        if not high or not 0 < train <= state.train_at_best * self.train_fell:
            return state, None
        if stays_at_chance(state.train_at_best, train):
            return state, None
        state.reported = True
        facts = OverfittingFacts(best, state.best_step, value, train, state.train_at_best, self.smallest_rise)
        return state, self.finding(point, Severity.WARNING, facts)


@dataclass(frozen=True, slots=True)
class OverfittingRule(Rule):
    """The validation loss rose from its best and stayed above it, while the training loss kept falling.

    What it sees: a training loss and its validation loss, with {fewest_validations} validations or more. The median of
    the last {tail:percent} of the validations, at least three, is {smallest_rise:exp_rise} or more above the best
    stretch before it; of one that goes below zero, {smallest_share:percent} of its fall. {most_above:percent} of them
    are above it by half of that. Noise does not explain the rise: a curve that falls and then rises fits the
    validations better than one that never rises, which happens in 2 of 100 noisy curves by chance. What a turn explains
    must reach those odds, times {odds}. With eight validations the turn must explain 93 % of the remaining variance,
    with thirty 71 %, with 1,000 15 %. It may explain {weight:percent} less where the rise is {large_rise} times the
    smallest, and as much less where the training loss fell to {large_fall:exp_left} meanwhile. The training loss is
    {smallest_fall:exp_fall} lower at the end than at the best validation, and not at chance level. Where its noise
    would hide such a fall, it is enough that it did not rise.

    When it is wrong: validation losses of overconfident classifiers rise while their accuracy still rises, too. A
    validation in another precision or with averaged weights measures another model.
    """

    kind = "overfitting"
    order = 100
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "smallest_rise": "times",
        "smallest_share": "times",
        "odds": "times",
    }
    remedies = Overfitting.remedies

    fewest_validations: int = 6  # minimum number of validations
    smallest_rise: float = math.log(1.04)
    """Minimum rise of the end of the validation loss above its best, in nats: {smallest_rise:exp_rise}."""
    smallest_share: float = 0.1
    """Minimum rise where it goes below zero: a share of its fall from the first validations to the best."""
    most_above: float = 0.7  # minimum share of the last validations that are above the best by half of that
    smallest_fall: float = -math.log(Overfitting().train_fell)
    """Minimum fall of the training loss since the best validation, in nats: {smallest_fall:exp_fall}."""
    odds: float = 1.0  # factor on the odds that a turn must reach: of what it explains to what remains
    tail: float = 0.2  # share of the validations that count as the end
    large_rise: float = 8.0  # multiple of the smallest rise that counts as evidence with the full `weight`
    large_fall: float = math.log(2)  # fall of the training loss, in nats, that does as well: to {large_fall:exp_left}
    weight: float = 0.2  # How much less a turn must explain then. With both, 4 in 100 flat noisy curves would pass.

    def like(self, detector: Detector) -> Rule:
        """The rise and the fall are those that the detector was given; a whole curve shows a smaller rise."""
        if not isinstance(detector, Overfitting):
            return self
        usual = detector.smallest_rise == Overfitting().smallest_rise
        smallest = self.smallest_rise if usual else math.log(max(1.0, detector.smallest_rise))
        return replace(self, smallest_rise=smallest, smallest_fall=-math.log(detector.train_fell))

    def find(self, curves: RunCurves) -> list[Finding]:
        """Return a finding for each validation loss; for those of parts only where the whole model has none."""
        findings: list[Finding] = []
        for validation in sorted(curves.validations, key=lambda curve: curve.place != ""):
            training = training_beside(validation, curves)
            if training is None or not validation.has_level or (findings and validation.place):
                continue
            finding = self._judge(training, validation)
            if finding is not None:
                findings.append(finding)
        return findings

    def _judge(self, training: Curve, validation: Curve) -> Finding | None:
        values = validation.values[validation.finite]
        if len(values) < self.fewest_validations:
            return None
        x, smallest = self._scaled(values)
        count, width = max(3, round(self.tail * len(x))), _width(len(x))
        levels = np.median(np.lib.stride_tricks.sliding_window_view(x[: max(width, len(x) - count + 1)], width), axis=1)
        at = int(np.argmin(levels))
        best, level = at + int(np.argmin(x[at : at + width])), float(levels[at])
        first = max(best + 1, len(x) - count)
        late = x[first:]
        rise = float(np.median(late)) - level if len(late) > 1 else 0.0
        if rise < smallest or (late > level + smallest / 2).mean() < self.most_above:
            return None
        since = training_since(training, validation, best)
        if since is None or stays_at_chance(since.before, since.now):
            return None
        hidden = since.error > self.smallest_fall and -since.error < since.fall < self.smallest_fall
        if since.fall < self.smallest_fall and not (hidden and since.fall + 2 * since.error > self.smallest_fall):
            return None
        evidence = min(1.0, (rise / smallest - 1) / (self.large_rise - 1))
        evidence += min(1.0, max(0.0, since.fall) / self.large_fall)
        if not turn_is_real(x, self.odds, chance_turn_share(len(x)) - self.weight * evidence):
            return None
        steps = validation.steps[validation.finite]
        facts = ValidationRiseFacts(
            best=float(np.median(values[at : at + width])),
            best_step=int(steps[best]),
            signal=validation.name,
            last=float(np.median(values[first:])),
            at_best=float(values[best]),
            threshold=math.expm1(self.smallest_rise),
            training=training.name,
            training_at_best=since.before,
            training_loss=since.now,
            is_fall_hidden=hidden,
        )
        start, peak = steps[min(best + 1, len(steps) - 1)], steps[best + int(np.argmax(values[best:]))]
        return self.finding(validation, Severity.WARNING, facts, start, steps[-1], peak=peak)

    def _scaled(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """The values on the scale that is judged, and the smallest rise on it."""
        lowest = float(values.min())
        if lowest > 0:
            return np.log(values), self.smallest_rise
        if lowest == 0 and (values > 0).mean() > 0.5:
            # A validation of exactly zero has no logarithm: it is read as a thousandth of the median.
            return np.log(values + 1e-3 * float(np.median(values[values > 0]))), self.smallest_rise
        width = _width(len(values))
        medians = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
        fall = float(medians[0] - medians.min())
        return values / (fall if fall > 0 else np.inf), self.smallest_share


def _width(validations: int) -> int:
    """The number of validations that make a level: two of fewer than ten, else three, or a tenth of them."""
    return max(2 if validations < 10 else 3, validations // 10)


def training_beside(validation: Curve, curves: RunCurves) -> Curve | None:
    """Return the training loss of the same part of the model in the same attempt."""
    where = (validation.place, validation.attempt)
    return next((curve for curve in curves.losses if (curve.place, curve.attempt) == where), None)


def turn_is_real(x: NDArray[np.float64], odds: float, share: float) -> bool:
    """Return whether a turn explains more than `share` of the variance of a falling curve, at these odds."""
    return turn_share(x) >= odds * share / (odds * share + 1 - share)
