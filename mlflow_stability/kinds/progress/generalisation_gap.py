"""Says when the validation loss stays far above a training loss that goes on falling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.training_since import training_since
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.detectors.sensitivity import factor_of, moved
from mlflow_stability.kinds.progress.overfitting import LastBelowBestFacts, Overfitting
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Finding, Severity


@dataclass(frozen=True, slots=True)
class GapFacts(LastBelowBestFacts):
    """A validation loss that stayed far above a training loss that fell."""

    kind: ClassVar[str] = "generalisation_gap"

    training: str
    """The training loss, by the name that the log gives it."""
    training_loss: float
    """The training loss at the end, in its unit."""
    training_fall: float
    """How far it fell since the step of the finding, as a share."""
    threshold: float
    """From how many times the training loss on it is a gap."""

    def numbers(self) -> dict[str, float]:
        """The metrics of the finding, with the gap in the unit of the loss."""
        return {**LastBelowBestFacts.numbers(self), "gap": self.last - self.training_loss}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``val_loss stayed at 2.1 from step 400 on, 20 times loss of 0.1 (threshold 8 times); loss fell by 60% …``"""
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
    validation loss fell by less than {improved:percent}.

    Why it matters: the model memorises its training data although the validation loss does not rise. More steps bring
    nothing.

    What to try: keep the checkpoint of the best step; stop there; more data, augmentation, dropout, weight decay.

    When it is wrong: a validation loss that falls later, after thousands of steps (grokking). A training loss that is
    measured in another way than the validation loss. No finding in 708 drawn healthy runs with validations.

    Reference: Zhang et al., Understanding deep learning requires rethinking generalization (arXiv:1611.03530)
    """

    kind = "overfitting"
    order = 101
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"ratio": "times", "grown": "times"}
    remedies = Overfitting.remedies

    fewest_validations: int = 6
    """Minimum number of validations."""
    ratio: float = 8.0
    """Minimum ratio of the validation loss to the training loss at the end."""
    grown: float = math.log(3)
    """Minimum growth of that ratio since the first validations, in nats: {grown:exp} times."""
    smallest_fall: float = math.log(2)
    """Minimum fall of the training loss in the second half, in nats: to its half."""
    improved: float = 0.05
    """Fall of the validation loss in the second half from which it still improves, as a share."""

    def like(self, detector: Detector) -> Rule:
        """As much stricter or looser as the smallest rise of the detector."""
        return moved(self, factor_of(detector)) if isinstance(detector, Overfitting) else self

    def find(self, curves: RunCurves) -> list[Finding]:
        """The first validation loss that ended so."""
        for validation in sorted(curves.validations, key=lambda each: each.place != ""):
            same = (each.place == validation.place and each.attempt == validation.attempt for each in curves.losses)
            training = next((each for each, fits in zip(curves.losses, same, strict=True) if fits), None)
            if training is None or not validation.has_level or not training.has_level:
                continue
            found = self._of(training, validation)
            if found is not None:
                return [found]
        return []

    def _of(self, training: Curve, validation: Curve) -> Finding | None:
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
            float(values[best]),
            int(steps[best]),
            validation.name,
            last,
            training.name,
            since_half.now,
            1 - math.exp(-since_half.fall),
            self.ratio,
        )
        return self.finding(validation, Severity.WARNING, facts, steps[half], steps[-1], peak=steps[-1])
