"""Says when the gradient norm grew and grew while the loss rose, too gradually for any single step to stand out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mlflow_stability.detectors.engine import Detector, Moves
from mlflow_stability.detectors.gradients import GradientExplosion
from mlflow_stability.diagnosis.curves.curves import Curve, RunCurves
from mlflow_stability.diagnosis.curves.levels import Levels, levels_of
from mlflow_stability.diagnosis.rules.divergence import onset
from mlflow_stability.diagnosis.rules.rule import Rule
from mlflow_stability.vocabulary.result import Episode, Severity


@dataclass(frozen=True, slots=True)
class GradientRiseRule(Rule):
    """The gradient norm grew by a factor of {smallest_rise:exp}, and the loss ended above its best.

    What it sees: of {fewest_levels} levels or more of the whole model's gradient norm the last ones, all at least
    {smallest_rise:exp} times its lowest level over {held} of them and {above_earlier:exp} times its highest level
    before the growth; in a run whose loss ended {loss_rise:exp_rise} or more above its best. The reported step is the
    first one at {deviations}σ of a level above the lowest.

    Why it matters: each step is larger than the one before; clipping hides it from the weights only in part.

    What to try: clip gradients at 1.0; lower the learning rate by a factor of 2 to 5; restart from a checkpoint before
    the growth.

    When it is wrong: a loss that is multiplied by a growing factor on purpose; a norm that is logged before unscaling.

    Reference: Pascanu et al. 2013 (arXiv:1211.5063).
    """

    kind = "gradient_explosion"
    order = 60
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "times", "above_earlier": "times"}
    remedies = GradientExplosion.remedies

    fewest_levels: int = 20
    """Minimum number of levels."""
    held: int = 5
    """Number of levels for which the lowest level must last."""
    smallest_rise: float = math.log(100)
    """Minimum rise of the end above the lowest level, in nats."""
    above_earlier: float = math.log(30)
    """Minimum rise above the highest level before the growth, in nats."""
    deviations: float = 6.0
    """σ of the noise of a level at which the growth starts."""
    loss_rise: float = math.log(1.1)
    """Minimum rise of the loss at the end above its best, in nats."""

    def like(self, detector: Detector) -> Rule:
        """No rise is smaller than the one that the detector was given."""
        if not isinstance(detector, GradientExplosion) or detector.threshold_alone:
            return self
        return replace(self, smallest_rise=max(self.smallest_rise, math.log(max(1.0, detector.smallest_rise))))

    def find(self, curves: RunCurves) -> list[Episode]:
        """The gradient norms of the whole model that grew so."""
        norms = [curve for curve in curves.norms if not curve.place]
        return [found for norm in norms if (found := self._of(norm, curves)) is not None]

    def _of(self, norm: Curve, curves: RunCurves) -> Episode | None:
        loss = next((each for each in curves.losses if each.attempt == norm.attempt and each.has_level), None)
        levels = levels_of(norm)
        if loss is None or levels is None or not levels.logarithmic or len(levels) < self.fewest_levels:
            return None
        windows = np.median(np.lib.stride_tricks.sliding_window_view(levels.x, self.held), axis=1)
        best = int(np.argmin(windows))
        floor, end = float(windows[best]), float(levels.x[-2:].min())
        if end - floor < self.smallest_rise or not self._risen(loss.last_phase):
            return None
        first = onset(levels, best, floor + max(self.deviations * levels.noise, math.log(1.5)))
        earlier = levels.x[: max(1, first // levels.size)]
        if end - float(np.sort(earlier)[-max(1, len(earlier) // 20)]) < self.above_earlier:
            return None
        return self._episode(norm, levels, first, math.exp(floor))

    def _risen(self, loss: Curve) -> bool:
        levels = levels_of(loss)
        if levels is None or not levels.logarithmic or len(levels) < self.fewest_levels:
            return False
        if loss.values[loss.finite][-1] < loss.floor:
            return False
        windows = np.median(np.lib.stride_tricks.sliding_window_view(levels.x, self.held), axis=1)
        return float(levels.x[-2:].min() - windows.min()) > max(self.loss_rise, 3 * levels.noise)

    def _episode(self, norm: Curve, levels: Levels, first: int, usual: float) -> Episode:
        steps, values = levels.raw_steps, norm.values[norm.finite]
        peak = first + int(np.argmax(values[first:]))
        last, start = float(np.median(values[-min(5, len(values)) :])), int(steps[first])
        grown = last / usual if usual > 0 else math.inf  # a level below the smallest float
        return Episode(
            self.kind,
            Severity.WARNING,
            start,
            int(steps[peak]),
            int(norm.steps[-1]),
            f"{norm.name} grew from step {start} on: {last:.4g} at the end, {grown:,.0f} times its level of "
            f"{usual:.4g} (threshold {math.exp(self.smallest_rise):,.0f} times), while the loss rose.",
            recovered=False,
            metric=norm.name,
            place=norm.place,
            attempt=norm.attempt,
            evidence={"level": usual, "highest": float(values[peak]), "last": last, "grown": grown},
            remedies=self.remedies,
        )
