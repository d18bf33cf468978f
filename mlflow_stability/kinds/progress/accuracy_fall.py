"""Says when the validation accuracy falls while the training accuracy rises, where no validation loss is logged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import noise_of
from mlflow_stability.curves.training_since import training_since
from mlflow_stability.curves.turning_point import by_chance, turned
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.detectors.sensitivity import factor_of, moved
from mlflow_stability.kinds.progress.overfitting import LastBelowBestFacts, Overfitting
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Finding, Severity

_TRAINED = re.compile(r"(?:^|[^a-z])(?:train|training|tr)(?:$|[^a-z])")
_HELD_OUT = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|test|dev)(?:$|[^a-z])")


@dataclass(frozen=True, slots=True)
class AccuracyFallFacts(LastBelowBestFacts):
    """A validation accuracy that fell while the training accuracy rose."""

    kind: ClassVar[str] = "accuracy_fall"

    training_at_best: float
    """The training accuracy at the best step, as a share."""
    training_accuracy: float
    """The training accuracy at the end, as a share."""
    threshold: float
    """From which fall on, as a share of all examples, it is one."""

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        """``val_acc fell from 80.1% at step 9 to 71.3% at the end (threshold 3%), while the training accuracy …``"""
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

    Why it matters: the model memorises its training data; the weights of the best step were better than the last.

    What to try: keep the checkpoint of the best step; stop early; more data, augmentation, dropout, weight decay.

    When it is wrong: a validation of other data than before, or of few examples: of drawn runs that level off, with 200
    examples and 12 epochs 4 in 100 are flagged, with 1,000 examples 1 in 100 or none.

    Reference: Prechelt 1998, Early stopping - but when?
    """

    kind = "overfitting"
    order = 102
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_fall": "times", "deviations": "times", "odds": "times"}
    remedies = Overfitting.remedies

    fewest_validations: int = 8
    """Minimum number of validations."""
    smallest_fall: float = 0.03
    """Minimum fall of the validation accuracy from its best: 3 percentage points."""
    deviations: float = 2.5
    """Minimum fall in σ of one validation: of 200 examples, accuracies vary by 3 points."""
    learnt: float = 0.98
    """Training accuracy from which it need not rise any more."""
    odds: float = 1.0
    """Factor on the odds that a turn must reach: of what it explains to what remains."""
    tail: float = 0.2
    """Share of the validations that count as the end."""

    def like(self, detector: Detector) -> Rule:
        """As much stricter or looser as the smallest rise of the detector."""
        return moved(self, factor_of(detector)) if isinstance(detector, Overfitting) else self

    def find(self, curves: RunCurves) -> list[Finding]:
        """The first validation accuracy that fell."""
        if curves.validations:
            return []
        training = {(_plain(each.name), each.attempt): each for each in curves.scores if _is(_TRAINED, each)}
        for validation in (each for each in curves.scores if _is(_HELD_OUT, each)):
            beside = training.get((_plain(validation.name), validation.attempt))
            found = None if beside is None else self._of(_errors(beside), _errors(validation), validation)
            if found is not None:
                return [found]
        return []

    def _of(self, training: Curve, validation: Curve, named: Curve) -> Finding | None:
        x, steps = validation.values[validation.finite], validation.steps[validation.finite]
        if len(x) < self.fewest_validations or x.min() < 0:
            return None
        width = max(2, len(x) // 10)
        count = max(3, round(self.tail * len(x)))
        held = np.median(np.lib.stride_tricks.sliding_window_view(x[: len(x) - count + 1], width), axis=1)
        at = int(np.argmin(held))
        best, last = at + int(np.argmin(x[at : at + width])), float(np.median(x[-count:]))
        since = training_since(training, validation, best)
        if since is None or last - float(held[at]) < max(self.smallest_fall, self.deviations * noise_of(x)):
            return None
        if since.now >= since.before and since.now > 1 - self.learnt:
            return None
        share = by_chance(len(x))
        if turned(x) < self.odds * share / (self.odds * share + 1 - share):
            return None
        facts = AccuracyFallFacts(
            1 - float(held[at]),
            int(steps[best]),
            named.name,
            1 - last,
            1 - since.before,
            1 - since.now,
            self.smallest_fall,
        )
        first, peak = steps[min(best + 1, len(steps) - 1)], steps[best + int(np.argmax(x[best:]))]
        return self.finding(named, Severity.WARNING, facts, first, steps[-1], peak=peak)


def _errors(accuracy: Curve) -> Curve:
    """The share of wrong answers, which falls as a loss does."""
    finite = accuracy.values[accuracy.finite]
    most = 100.0 if len(finite) and finite.max() > 1.5 else 1.0  # in percent, or a share
    values: NDArray[np.float64] = 1 - accuracy.values / most
    return replace(accuracy, values=values)


def _is(split: re.Pattern[str], curve: Curve) -> bool:
    return "acc" in curve.name.lower() and split.search(curve.name.lower()) is not None


def _plain(name: str) -> str:
    """The name without the word for the split."""
    return re.sub(r"[^a-z0-9]+", " ", _HELD_OUT.sub(" ", _TRAINED.sub(" ", name.lower()))).strip()
