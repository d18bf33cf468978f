"""Says when a loss blew up in its very last points, too few to move any level of the whole curve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import noise_of, scaled
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import LossEndFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.phrases import factor


@dataclass(frozen=True, slots=True)
class FinalRiseFacts(LossEndFacts):
    """A loss that jumped in its last points."""

    kind: ClassVar[str] = "final_rise"
    metrics = ("before", "highest", "last")

    before: float
    """Its level before, in the unit of the loss."""
    points: int
    """Number of high points."""
    threshold: float
    """From how many times its level before on a loss above zero is high."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss jumped in the last 4 points, from step 400 on: ended at 9, 7 times its level of 1.28 before …``"""
        times = f"; level before {self.before:.4g}"
        if self.before > 0:
            times = (
                f", {factor(self.last / self.before)} times its level of {self.before:.4g} before (threshold "
                f"{self.threshold:.3g} times)"
            )
        return (
            f"{self.signal} jumped in the last {self.points} points, from {unit} {step} on: ended at "
            f"{self.last:.4g}{times}."
        )


@dataclass(frozen=True, slots=True)
class FinalRiseRule(Rule):
    """The last points of a loss, {fewest} or more, are all far above the points before them.

    What it sees: at least {fewest} points up to the last one. Each is above {smallest_rise:exp} times the level before
    them, above {deviations}σ of its noise, and above the highest of up to {before} points before, at least
    {fewest_before}. Rises longer than {most:percent} of the run are left to the other rules. A loss that reaches zero
    or below is judged by σ, and by {wandering} times its largest rise over as many points before: one that wanders does
    not diverge.

    Why it matters: the run ended while it diverged; its last checkpoint may hold broken weights.

    What to try: restart from a checkpoint before the onset; lower the learning rate by a factor of 2 to 5; clip
    gradients at 1.0.

    When it is wrong: a spike that would have recovered had the log continued; the log cannot show that.

    Reference: Chowdhery et al. 2022, PaLM, section 5.1.
    """

    kind = "divergence"
    order = 40
    severities = (Severity.CRITICAL,)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"deviations": "times", "smallest_rise": "times"}
    remedies = Divergence.remedies

    fewest_before: int = 32
    """Minimum number of points before the end."""
    before: int = 128
    """Maximum number of points before the end that are used."""
    fewest: int = 3
    """Minimum number of high points at the end."""
    smallest_rise: float = math.log(2)
    """Minimum rise of each of them above the level before, in nats."""
    deviations: float = 10.0
    """Minimum rise in σ of the noise of single points."""
    wandering: float = 1.5
    """Minimum rise of a loss that reaches zero or below, as a multiple of its largest rise over as many points before.
    CRITICAL without it: 10 of 30 random walks and 1 of 30 autoregressive losses (0.98); with it: 1 and 0."""
    most: float = 0.1
    """Maximum share of the run; longer rises are left to the divergence rule."""

    def like(self, detector: Detector) -> Rule:
        """σ move as those of the detector, and no rise is smaller than the one that it was given."""
        if not isinstance(detector, Divergence):
            return self
        return replace(
            self,
            deviations=self.deviations * (detector.threshold / Divergence().threshold),
            smallest_rise=max(self.smallest_rise, math.log(max(1.0, detector.smallest_rise))),
        )

    def find(self, curves: RunCurves) -> list[Finding]:
        """The losses that ended so; validation losses only where no training loss was logged."""
        judged = [curve for curve in curves.losses or curves.validations if not curve.part and curve.has_level]
        return [found for curve in judged if (found := self._of(curve.last_phase)) is not None]

    def _of(self, curve: Curve) -> Finding | None:
        finite = curve.finite
        values, steps = curve.values[finite], curve.steps[finite]
        if len(values) < self.fewest_before + self.fewest or not finite[-1]:
            return None
        x, logarithmic = scaled(values)
        reach = max(self.fewest, int(self.most * len(x)))
        past = x[max(0, len(x) - reach - self.before) : max(self.fewest_before, len(x) - reach)]
        least = self.deviations * noise_of(past)
        if logarithmic:
            least = max(least, self.smallest_rise)
        limit = max(float(np.median(past)) + least, float(past.max()))
        if not logarithmic:
            limit = max(limit, float(np.median(past)) + self.wandering * _rose_before(x[: len(x) - reach], reach))
        low = np.flatnonzero(x <= limit)
        first = int(low[-1]) + 1 if len(low) else 0  # none is low where the limit is no number: values of 1e308
        if not self.fewest <= len(x) - first <= reach:
            return None
        if values[first:].min() < curve.floor:
            return None
        first = _left(x, first, float(np.median(past)) + least / 2)
        peak = first + int(np.argmax(values[first:]))
        facts = FinalRiseFacts(
            curve.name,
            float(values[-1]),
            float(values[peak]),
            before=float(np.median(values[max(0, first - self.before) : first])),
            points=len(values) - first,
            threshold=math.exp(self.smallest_rise),
        )
        return self.finding(curve, Severity.CRITICAL, facts, steps[first], steps[-1], peak=steps[peak])


def _rose_before(x: NDArray[np.float64], within: int) -> float:
    """The largest rise of a curve within so many points, by medians of five."""
    width = 5  # a single high point is not a rise
    if len(x) < 2 * width:
        return 0.0
    held = np.median(np.lib.stride_tricks.sliding_window_view(x, width), axis=1)
    return float((held - _lowest_of_the_last(held, min(within, len(held)))).max())


def _lowest_of_the_last(x: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """For each point the lowest of so many up to it, by minima within blocks, in time that does not depend on them."""
    padded = np.full(-(-(len(x) + count - 1) // count) * count, np.inf)
    padded[count - 1 : count - 1 + len(x)] = x
    blocks = padded.reshape(-1, count)
    forward = np.minimum.accumulate(blocks, axis=1).ravel()
    backward = np.minimum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.asarray(np.minimum(backward[: len(x)], forward[count - 1 : count - 1 + len(x)]), np.float64)


def _left(x: NDArray[np.float64], first: int, limit: float) -> int:
    """The point at which the curve left its level: as far back as it was above half of the limit."""
    while first > 1 and x[first - 1] > limit:
        first -= 1
    return first
