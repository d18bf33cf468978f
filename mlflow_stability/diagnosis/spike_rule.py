"""Says when single values of a loss stood far above both what came before and what came after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.detectors.loss_spike import LossSpike
from mlflow_stability.detectors.sensitivity import Moves
from mlflow_stability.diagnosis.curves import Curve, RunCurves
from mlflow_stability.diagnosis.jumps import Jumps, jumps_of, tail_limit
from mlflow_stability.diagnosis.levels import scaled
from mlflow_stability.diagnosis.quantum import is_rounding
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity


@dataclass(frozen=True, slots=True)
class SpikeRule:
    """A loss jumped far above its neighbourhood and came back.

    What it sees: points of the logarithm of a loss above the medians of the neighbours on both sides, so that neither
    a falling loss nor a lasting step is a spike. How far is far, the curve's own noise says: further than a tail like
    its own reaches once in twenty runs of this length. Seven points are enough, then 5 deviations and 30 % are asked
    for; of long curves 8 deviations. Below a hundredth of where the loss began nothing is a spike.

    Why it matters: a spike is a bad batch or a step that was too long; the next one may not come back.

    What to try: look at the batch; clip gradients at 1.0; lower the learning rate 2-5 times.

    When it is wrong: validations of few examples; the first steps of a training that starts with a high learning rate,
    which come back in a few steps and are only mentioned.

    Reference: Chowdhery et al. 2022, PaLM, section 5.1; Pickands 1975 (tails over a threshold).
    """

    kind: ClassVar[str] = "loss_spike"
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "deviations": "times",
        "smallest_jump": "times",
        "agreeing": "times",
        "agreeing_with_gradient": "times",
        "share_of_tail": "times",
    }
    remedies: ClassVar[tuple[str, ...]] = LossSpike.remedies

    fewest_points: int = 7
    """Shorter curves are not judged."""
    most_points: int = 100_000
    """Longer curves are left to the detector, which has learned what is normal there."""
    further_of_many: float = 1.3
    """How much further than its tail a point of 256 or more is, which the detector judges as well."""
    share_of_tail: float = 1.0
    """How far beyond the tail of the curve's own noise, as a share of that; 0: the tail is not asked."""
    deviations: tuple[float, float] = (5.0, 8.0)
    """How many deviations are asked for, of a curve of 16 points or fewer and of one of 256 or more."""
    smallest_jump: tuple[float, float] = (math.log(1.3), math.log(1.15))
    """And which rise, in nats, likewise."""
    agreeing: tuple[float, float] = (2.0, math.log(2))
    """The deviations and the rise that are enough where training and validation loss jump in the same step: then it
    is the model that jumped, and not the luck of a batch."""
    agreeing_with_gradient: tuple[float, float] = (3.5, math.log(1.2))
    """The same where the gradient norm jumps with the loss."""
    reach: int = 8
    """How many neighbours on each side are looked at, at most; of short curves an eighth of the points."""
    start_up: float = 0.05
    """A spike within this share of the run that came back is a start-up transient, and only mentioned."""
    first_points: int = 5
    """And so is one within the first points of a curve of four times as many or more."""
    huge: float = 100.0
    """A spike to so many times the level before it is critical."""

    def find(self, curves: RunCurves) -> list[Episode]:
        """The spikes of the losses of the whole model, those of training first."""
        judged = [curve for curve in (*curves.losses, *curves.validations) if not curve.part and not curve.game]
        jumps = {id(curve): self._jumps(curve) for curve in (*judged, *curves.norms)}
        found: list[Episode] = []
        for curve in judged:
            mine = jumps[id(curve)]
            if mine is None:
                continue
            high = mine.far(self._limit(mine), self._jump(mine))
            for other in (*judged, *curves.norms):
                theirs = jumps[id(other)]
                if theirs is None or other.attempt != curve.attempt or other.quantity == curve.quantity:
                    continue
                needed = self.agreeing_with_gradient if other.quantity == "grad_norm" else self.agreeing
                high |= mine.far(*needed) & np.isin(mine.steps, theirs.steps[theirs.far(*needed)])
            found += self._episodes(curve, mine, high)
        return found

    def judges(self, curve: Curve) -> bool:
        """Whether the curve is one that this rule can judge: long enough, not too long, and a loss above zero."""
        values = curve.values[curve.finite]
        return self.fewest_points <= len(values) <= self.most_points and scaled(values)[1]

    def _jumps(self, curve: Curve) -> Jumps | None:
        if not self.judges(curve):
            return None
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        return jumps_of(steps, values, scaled(values)[0], self._reach(len(values)))

    def _share(self, jumps: Jumps) -> float:
        return min(1.0, max(0.0, math.log2(len(jumps.z) / 16) / 4))

    def _limit(self, jumps: Jumps) -> float:
        few, many = self.deviations
        further = self.share_of_tail * (1.0 if self._share(jumps) < 1.0 else self.further_of_many)
        return max(few + self._share(jumps) * (many - few), further * tail_limit(jumps.z, len(jumps.z)))

    def _jump(self, jumps: Jumps) -> float:
        few, many = self.smallest_jump
        return few + self._share(jumps) * (many - few)

    def _reach(self, count: int) -> int:
        return max(3, min(self.reach, count // 8))

    def _episodes(self, curve: Curve, jumps: Jumps, high: NDArray[np.bool_]) -> list[Episode]:
        values, steps = jumps.values, jumps.steps
        found = []
        places = np.flatnonzero(high)
        groups = np.split(places, np.flatnonzero(np.diff(places) > self._reach(len(values))) + 1) if len(places) else []
        for group in groups:
            first, last = int(group[0]), int(group[-1])
            peak = first + int(np.argmax(values[first : last + 1]))
            level = math.exp(float(jumps.before[peak]))
            recovered = last < len(values) - 1
            early = (steps[last] - steps[0]) <= self.start_up * (steps[-1] - steps[0])
            early |= last < self.first_points <= len(values) / 4
            transient = early and recovered and float(np.median(values[last + 1 :])) < values[0]
            ratio = float(values[peak]) / level
            message = f"{curve.name} jumped to {values[peak]:.4g} at step {int(steps[peak])} from about {level:.4g}"
            message += " and came back." if recovered else "; the log ends there."
            if values[peak] < curve.floor or is_rounding(values, float(values[peak]) - level):
                continue
            severity = Severity.CRITICAL if ratio >= self.huge else Severity.WARNING
            found.append(
                Episode(
                    self.kind,
                    Severity.INFO if transient else severity,
                    int(steps[first]),
                    int(steps[peak]),
                    int(steps[last]),
                    message,
                    events=len(group),
                    recovered=True if recovered else None,
                    metric=curve.name,
                    place=curve.place,
                    attempt=curve.attempt,
                    evidence={"peak": float(values[peak]), "before": level, "z": float(jumps.z[peak])},
                    remedies=self.remedies,
                )
            )
        return found
