"""Says when a training that was resumed stood far above where it had stopped, and stayed there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import noise_of
from mlflow_stability.curves.resumes import goes_on, pieces_of
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import LossEndFacts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class ResumeFacts(LossEndFacts):
    """A loss that was higher after a resume than before it, and did not recover."""

    kind: ClassVar[str] = "resume"
    metrics = ("before", "resumed", "highest", "last")

    before: float
    """The loss before the resume, in its unit."""
    after: float
    """The loss after the resume, in its unit."""
    resumed: int
    """The first step after the resume."""
    threshold: float
    """From how many times the loss before on it is a finding."""

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        """``loss 2.1 after the resume at step 400, 2 times the 1.05 before it (threshold 1.3 times); ended at 2.``"""
        return (
            f"{self.signal} {self.after:.4g} after the resume at {unit} {self.resumed}, "
            f"{self.after / self.before:.3g} times the {self.before:.4g} before it (threshold {self.threshold:.3g} "
            f"times); ended at {self.last:.4g}."
        )


@dataclass(frozen=True, slots=True)
class ResumeRule(Rule):
    """After a resume the loss is higher than before it, and does not recover.

    What it sees: the first {fewest_points} to {most_points} values after the resume and the last ones of the run, both
    more than {smallest_rise:exp_rise} and {chance}σ above the values of the same steps before the resume, or the last
    ones before it. At the end {stayed:percent} of the rise must be left.

    Why it matters: a state that was loaded in part, another learning rate or other data undo what was learnt.

    What to try: compare the learning rate, the optimizer state, the data order and the number of processes before and
    after; load weights, optimizer and scheduler together.

    When it is wrong: a resume that continues with another task or other data on purpose.

    Reference: PyTorch, Saving and loading a general checkpoint.
    """

    kind = "divergence"
    order = 50
    severities = (Severity.CRITICAL,)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"chance": "times", "smallest_rise": "times"}
    remedies = (
        Remedy(Action.COMPARE_RESUMED_STATE),
        *Divergence.remedies,
    )

    fewest_points: int = 8
    """Minimum number of values on each side."""
    most_points: int = 50
    """Maximum number of values that are compared."""
    smallest_rise: float = math.log(1.3)
    """Minimum rise in nats."""
    chance: float = 5.0
    """Minimum rise in σ of the difference of both medians."""
    stayed: float = 0.5
    """Minimum share of the rise that remains at the end."""

    def like(self, detector: Detector) -> Rule:
        """σ move as those of the detector, and no rise is smaller than the one that it was given."""
        if not isinstance(detector, Divergence):
            return self
        return replace(
            self,
            chance=self.chance * (detector.threshold / Divergence().threshold),
            smallest_rise=max(self.smallest_rise, math.log(max(1.0, detector.smallest_rise))),
        )

    def find(self, curves: RunCurves) -> list[Finding]:
        """The resumes after which a training loss of the whole model was lost."""
        judged = [curve for curve in curves.losses if not curve.part and curve.has_level]
        pairs = [pair for pieces in pieces_of(judged) for pair in pairwise(pieces) if goes_on(*pair)]
        return [found for before, after in pairs if (found := self._of(before, after)) is not None]

    def _of(self, before: Curve, after: Curve) -> Finding | None:
        old, new = before.values[before.finite], after.values[after.finite]
        old_steps, steps = before.steps[before.finite], after.steps[after.finite]
        if min(len(old), len(new)) < self.fewest_points or min(old.min(), new.min()) <= 0:
            return None
        begun, ended = new[: self.most_points], new[-min(5, len(new)) :]
        again = old[old_steps >= steps[0]][: self.most_points]
        compared = again if len(again) >= self.fewest_points else old[-self.most_points :]
        level, start, last = (float(np.log(np.median(each))) for each in (compared, begun, ended))
        noise = max(noise_of(np.log(compared)), noise_of(np.log(begun)))
        least = max(self.smallest_rise, self.chance * noise * 1.25 * math.sqrt(1 / len(compared) + 1 / len(begun)))
        rise = start - level
        if math.exp(last) < before.floor or rise < least or last - level < max(least, self.stayed * rise):
            return None
        facts = ResumeFacts(
            after.name,
            math.exp(last),
            float(new.max()),
            before=math.exp(level),
            after=math.exp(start),
            resumed=int(steps[0]),
            threshold=math.exp(self.smallest_rise),
        )
        peak = steps[int(np.argmax(new))]
        return self.finding(after, Severity.CRITICAL, facts, steps[0], steps[-1], peak=peak)
