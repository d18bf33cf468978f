"""Says when a loss whose level does not measure progress ended a thousand times as large as it began."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.loss_fall import FIRST_VALUES
from mlflow_stability.detectors.loss_level import LEAST_SIZE, LOSS_RISE
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import LossEndFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.phrases import factor


@dataclass(frozen=True, slots=True)
class SizeRiseFacts(LossEndFacts):
    """A loss that ended many times as large as it began; `last` and `highest` are sizes, whatever its sign."""

    kind: ClassVar[str] = "size_rise"
    metrics = ("early", "highest", "last")

    early: float
    """Its size in the first points, in the unit of the loss."""
    threshold: float
    """From which size on it is a finding, in the unit of the loss."""
    points: int = FIRST_VALUES
    """Number of first points."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``critic grew from step 400 on: its size ended at 4e+05, 1,000 times its size in the first 20 points, …``"""
        times = ""
        if self.early > 0:
            ratio = factor(self.last / self.early)
            times = f", {ratio} times its size in the first {self.points} points, {self.early:.4g}"
        return (
            f"{self.signal} grew from {unit} {step} on: its size ended at {self.last:.4g}{times} (threshold "
            f"{self.threshold:.4g})."
        )


@dataclass(frozen=True, slots=True)
class LossSizeRule(Rule):
    """A loss without a level ended {smallest_rise} times as large as it began.

    What it sees: losses whose level does not measure progress: of adversarial training, of reinforcement learning, of
    self-distillation, or with a changing sign; with {fewest_points} points or more. The median size of the last {last}
    points, whatever their sign, is {smallest_rise} times that of the first {loss_fall.FIRST_VALUES}, and above
    {least_size}.

    Why it matters: no healthy target grows that much. A critic that follows its own estimates grows without bound.

    What to try: restart from a checkpoint before the onset; lower the learning rate by a factor of 2 to 5; clip
    gradients; normalise rewards.

    When it is wrong: rewards that appear late and are very large.

    Reference: van Hasselt et al. 2018, Deep reinforcement learning and the deadly triad (arXiv:1812.02648).
    """

    kind = "divergence"
    order = 45
    severities = (Severity.CRITICAL,)
    remedies = Divergence.remedies

    smallest_rise: float = LOSS_RISE
    """Minimum ratio of the size at the end to that in the first {loss_fall.FIRST_VALUES} points."""
    least_size: float = LEAST_SIZE
    """Minimum size at the end."""
    last: int = 5
    """Number of last points whose median is the end."""
    fewest_points: int = 32
    """Minimum number of points."""

    def like(self, detector: Detector) -> Rule:
        """The thresholds are those of the detector."""
        if not isinstance(detector, Divergence):
            return self
        return replace(
            self, smallest_rise=detector.smallest_rise_without_level, least_size=detector.least_size_without_level
        )

    def find(self, curves: RunCurves) -> list[Finding]:
        """The losses that grew so."""
        judged = [curve for curve in curves.losses or curves.validations if not curve.has_level]
        return [found for curve in judged if (found := self._of(curve)) is not None]

    def _of(self, curve: Curve) -> Finding | None:
        sizes, steps = np.abs(curve.values[curve.finite]), curve.steps[curve.finite]
        if len(sizes) < self.fewest_points:
            return None
        early, last = curve.early_size, float(np.median(sizes[-self.last :]))
        limit = max(self.least_size, self.smallest_rise * early)
        if last < limit:
            return None
        low = np.flatnonzero(sizes[: -self.last] < limit)  # a single last value may be low again
        first = int(low[-1]) + 1 if len(low) else 0
        peak = first + int(np.argmax(sizes[first:]))
        facts = SizeRiseFacts(curve.name, last, float(sizes[peak]), early, limit)
        return self.finding(curve, Severity.CRITICAL, facts, steps[first], steps[-1], peak=steps[peak])
