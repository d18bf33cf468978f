"""Detect overfitting by validation accuracies, and by the gap between validation and training loss."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import level_noise
from mlflow_stability.curves.turning_point import chance_turn_share, training_since
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.detectors.sensitivity import factor_of, scale_thresholds
from mlflow_stability.kinds.progress.overfitting import LastBelowBestFacts, Overfitting, training_beside, turn_is_real
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.metric_names import ERRORS, split_words

_TRAINED = re.compile(r"(?:^|[^a-z])(?:train|training|tr)(?:$|[^a-z])")
_HELD_OUT = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|test|dev)(?:$|[^a-z])")


@dataclass(frozen=True, slots=True)
class AccuracyFallFacts(LastBelowBestFacts):
    """A validation accuracy that fell while the training accuracy rose."""

    kind: ClassVar[str] = "accuracy_fall"

    training_at_best: float  # The training accuracy at the best step, as a share
    training_accuracy: float  # The training accuracy at the end, as a share
    threshold: float  # Minimum fall, as a share of all examples

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"{self.signal} fell from {self.best:.1%} at {unit} {self.best_step} to {self.last:.1%} at the end "
            f"(threshold {self.threshold:.0%}), while the training accuracy went from {self.training_at_best:.1%} to "
            f"{self.training_accuracy:.1%}."
        )


@dataclass(frozen=True, slots=True)
class AccuracyFallRule(Rule):
    """The validation accuracy fell from its best and stayed below it, while the training accuracy rose.

    What it sees: a training and a validation accuracy of the same name (`train_acc`, `val_acc`) without any validation
    loss, with {fewest_validations} validations or more. The median of the last {tail:percent} of the validations, at
    least three, is {smallest_fall:points} percentage points and {deviations}σ below the best stretch. Noise does not
    explain it, by the same test as for validation losses, at {odds} times those odds. The training accuracy rose
    meanwhile, or is {learnt:percent} or more.

    When it is wrong: a validation of other data than before, or of few examples: of drawn runs that level off, with 200
    examples and 12 epochs 4 in 100 are flagged, with 1,000 examples 1 in 100 or none.
    """

    kind = "overfitting"
    order = 102
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_fall": "times", "deviations": "times", "odds": "times"}
    remedies = Overfitting.remedies

    fewest_validations: int = 8  # minimum number of validations
    smallest_fall: float = 0.03  # minimum fall of the validation accuracy from its best: 3 percentage points
    deviations: float = 2.5  # minimum fall in σ of one validation: of 200 examples, accuracies vary by 3 points
    learnt: float = 0.98  # training accuracy from which it need not rise any more
    odds: float = 1.0  # factor on the odds that a turn must reach: of what it explains to what remains
    tail: float = 0.2  # share of the validations that count as the end

    def like(self, detector: Detector) -> Rule:
        """As much stricter or looser as the smallest rise of the detector."""
        return scale_thresholds(self, factor_of(detector)) if isinstance(detector, Overfitting) else self

    def find(self, curves: RunCurves) -> list[Finding]:
        """Return the first validation accuracy that fell."""
        if curves.validations:
            return []
        training = {(_bare(curve.name), curve.attempt): curve for curve in curves.scores if _is(_TRAINED, curve)}
        for validation in (curve for curve in curves.scores if _is(_HELD_OUT, curve)):
            beside = training.get((_bare(validation.name), validation.attempt))
            finding = None if beside is None else self._judge(_errors(beside), _errors(validation))
            if finding is not None:
                return [finding]
        return []

    def _judge(self, training: Curve, validation: Curve) -> Finding | None:
        """Judge the error rates of an accuracy: what is best is lowest."""
        x, steps = validation.values[validation.finite], validation.steps[validation.finite]
        if len(x) < self.fewest_validations or x.min() < 0:
            return None
        width = max(2, len(x) // 10)
        count = max(3, round(self.tail * len(x)))
        levels = np.median(np.lib.stride_tricks.sliding_window_view(x[: len(x) - count + 1], width), axis=1)
        at = int(np.argmin(levels))
        best, last = at + int(np.argmin(x[at : at + width])), float(np.median(x[-count:]))
        since = training_since(training, validation, best)
        if since is None or last - float(levels[at]) < max(self.smallest_fall, self.deviations * level_noise(x)):
            return None
        if since.now >= since.before and since.now > 1 - self.learnt:
            return None
        if not turn_is_real(x, self.odds, chance_turn_share(len(x))):
            return None
        facts = AccuracyFallFacts(
            best=1 - float(levels[at]),
            best_step=int(steps[best]),
            signal=validation.name,
            last=1 - last,
            training_at_best=1 - since.before,
            training_accuracy=1 - since.now,
            threshold=self.smallest_fall,
        )
        start, peak = steps[min(best + 1, len(steps) - 1)], steps[best + int(np.argmax(x[best:]))]
        return self.finding(validation, Severity.WARNING, facts, start, steps[-1], peak=peak)


def _errors(accuracy: Curve) -> Curve:
    """Return the error rate, which falls as a loss does."""
    finite = accuracy.values[accuracy.finite]
    scale = 100.0 if len(finite) and finite.max() > 1.5 else 1.0  # in percent, or a share
    values: NDArray[np.float64] = 1 - accuracy.values / scale
    return replace(accuracy, values=values)


def _measures_errors(curve: Curve) -> bool:
    """Whether a curve that stands for a loss is an error rate or a perplexity."""
    return not set(ERRORS).isdisjoint(word.lower() for word in split_words(curve.name))


def _is(split: re.Pattern[str], curve: Curve) -> bool:
    return "acc" in curve.name.lower() and split.search(curve.name.lower()) is not None


def _bare(name: str) -> str:
    """Return the name without the word for the split."""
    return re.sub(r"[^a-z0-9]+", " ", _HELD_OUT.sub(" ", _TRAINED.sub(" ", name.lower()))).strip()


@dataclass(frozen=True, slots=True)
class GapFacts(LastBelowBestFacts):
    """A validation loss that stayed far above a training loss that fell."""

    kind: ClassVar[str] = "generalisation_gap"

    training: str  # The training loss, by the name that the log gives it
    training_loss: float  # The training loss at the end, in its unit
    training_fall: float  # How far it fell since the step of the finding, as a share
    threshold: float  # Minimum ratio to the training loss

    def numbers(self) -> dict[str, float]:
        return {**LastBelowBestFacts.numbers(self), "gap": self.last - self.training_loss}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"{self.signal} stayed at {self.last:.4g} from {unit} {step} on, {self.last / self.training_loss:.3g} "
            f"times {self.training} of {self.training_loss:.4g} (threshold {self.threshold:g} times); {self.training} "
            f"fell by {self.training_fall:.0%} meanwhile."
        )


@dataclass(frozen=True, slots=True)
class GeneralisationGapRule(Rule):
    """The gap between validation and training loss grew, and the validation loss no longer improved.

    What it sees: {fewest_validations} validations or more, of losses above zero. At the end the validation loss is
    {ratio} times the training loss or more, and that ratio has grown by a factor of {grown:exp} since the first
    validations. In the second half of the validations the training loss fell to {smallest_fall:exp_left}, while the
    validation loss fell by less than {improved:percent}. An error rate or perplexity is not compared with a loss.

    When it is wrong: a validation loss that falls later, after thousands of steps (grokking). A training loss that is
    measured in another way than the validation loss. No finding in 708 drawn healthy runs with validations.
    """

    kind = "overfitting"
    order = 101
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"ratio": "times", "grown": "times"}
    remedies = Overfitting.remedies

    fewest_validations: int = 6  # minimum number of validations
    ratio: float = 8.0  # minimum ratio of the validation loss to the training loss at the end
    grown: float = math.log(3)  # minimum growth of that ratio since the first validations, in nats: {grown:exp} times
    smallest_fall: float = math.log(2)  # minimum fall of the training loss in the second half, in nats: to its half
    improved: float = 0.05  # fall of the validation loss in the second half from which it still improves, as a share

    def like(self, detector: Detector) -> Rule:
        """As much stricter or looser as the smallest rise of the detector."""
        return scale_thresholds(self, factor_of(detector)) if isinstance(detector, Overfitting) else self

    def find(self, curves: RunCurves) -> list[Finding]:
        """Return the first validation loss with this gap."""
        for validation in sorted(curves.validations, key=lambda curve: curve.place != ""):
            training = training_beside(validation, curves)
            if training is None or not validation.has_level or not training.has_level:
                continue
            if _measures_errors(validation) and not _measures_errors(training):
                continue  # a ratio of a percentage to a loss means nothing
            finding = self._judge(training, validation)
            if finding is not None:
                return [finding]
        return []

    def _judge(self, training: Curve, validation: Curve) -> Finding | None:
        values, steps = validation.values[validation.finite], validation.steps[validation.finite]
        trained = training.values[training.finite]
        count = len(values)
        if count < self.fewest_validations or values.min() <= 0 or len(trained) == 0 or trained.min() <= 0:
            return None
        width, half = max(2, count // 10), count // 2
        since_start, since_half = training_since(training, validation, 0), training_since(training, validation, half)
        if since_start is None or since_half is None or since_half.fall < self.smallest_fall:
            return None
        middle = float(np.median(values[max(0, half - width) : half + width]))
        first, last = float(np.median(values[:width])), float(np.median(values[-width:]))
        grown = math.log(last / since_half.now) - math.log(first / since_start.before)
        if last < self.ratio * since_half.now or grown < self.grown or last < (1 - self.improved) * middle:
            return None
        best = int(np.argmin(values))
        facts = GapFacts(
            best=float(values[best]),
            best_step=int(steps[best]),
            signal=validation.name,
            last=last,
            training=training.name,
            training_loss=since_half.now,
            training_fall=1 - math.exp(-since_half.fall),
            threshold=self.ratio,
        )
        return self.finding(validation, Severity.WARNING, facts, steps[half], steps[-1], peak=steps[-1])
