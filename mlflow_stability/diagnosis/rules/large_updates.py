"""Says when steps stayed large to the end and the loss hardly fell: the learning rate keeps it from being learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlflow_stability.detectors.optimizer import UpdateRatioHigh
from mlflow_stability.diagnosis.curves.curves import Curve, RunCurves
from mlflow_stability.diagnosis.rules.rule import Rule
from mlflow_stability.vocabulary.result import Episode, Severity

LATE_FALL = "late_fall"
"""Evidence: the share by which the loss fell after the early part of the run."""


@dataclass(frozen=True, slots=True)
class LargeUpdatesRule(Rule):
    """Updates stayed large to the end of a training whose loss hardly fell.

    What it sees: a loss that fell by less than {most_gain:exp_fall} in all, and by less than {late_gain:exp_fall} after
    {early:percent} of the run, while the updates were {lowest_ratio} of the weight norm or more, both in the median of
    that time and at the end. It needs {fewest_points} losses and {fewest_ratios} measured updates.

    Why it matters: every fifty steps change the weights by as much as they hold, so what is learnt is overwritten. The
    loss stays at a level that a lower rate would leave.

    What to try: lower the learning rate by a factor of 5 to 10; lengthen the warm-up.

    When it is wrong: data that cannot be learnt better. A lower rate then changes nothing. Of 82 healthy trainings none
    has a ratio above 0.0165 for so long while its loss has a level.

    Reference: https://karpathy.github.io/2019/04/25/recipe/; You et al., LAMB (arXiv:1904.00962)
    """

    kind = "update_ratio_high"
    order = 180
    remedies = UpdateRatioHigh.remedies

    lowest_ratio: float = 0.02
    """Minimum ratio of update norm to weight norm."""
    most_gain: float = math.log(2)
    """Maximum fall of the loss from its start to its end, in nats: to its half."""
    late_gain: float = -math.log(0.88)
    """Maximum fall from the end of `early` to the end of the run, in nats: {late_gain:exp_fall}."""
    early: float = 0.2
    """Share of the run after which the loss should still fall."""
    fewest_points: int = 200
    """Minimum number of losses."""
    fewest_ratios: int = 10
    """Minimum number of measured updates after the early share."""

    def find(self, curves: RunCurves) -> list[Episode]:
        """The training losses that were kept from falling so."""
        judged = [curve for curve in curves.losses if not curve.part and curve.has_level]
        return [found for loss in judged if (found := self._of(loss, curves)) is not None]

    def _of(self, loss: Curve, curves: RunCurves) -> Episode | None:
        updates = [curve for curve in curves.updates if curve.attempt == loss.attempt]
        ratio = next((curve for curve in updates if curve.place == loss.place), None)
        values, steps = loss.values[loss.finite], loss.steps[loss.finite]
        if ratio is None or len(values) < self.fewest_points or values.min() <= 0:
            return None
        x, tenth = np.log(values), len(values) // 10
        first, last = float(np.median(x[: max(3, tenth // 5)])), float(np.median(x[-tenth:]))
        begun = round(self.early * len(x))
        early = float(np.median(x[begun : begun + tenth]))
        if first - last > self.most_gain or early - last > self.late_gain or last > first:
            return None
        late = ratio.values[ratio.finite & (ratio.steps >= steps[begun])]
        if len(late) < self.fewest_ratios:
            return None
        usual, end = float(np.median(late)), float(np.median(late[-max(3, len(late) // 10) :]))
        if min(usual, end) < self.lowest_ratio:
            return None
        start = int(steps[begun])
        return Episode(
            self.kind,
            Severity.WARNING,
            start,
            start,
            int(steps[-1]),
            f"update ratio about {usual:.2g} from step {start} to the end (threshold {self.lowest_ratio:g} while "
            f"{loss.name} hardly falls; it fell by {1 - math.exp(last - early):.1%} in that time).",
            recovered=False,
            metric=loss.name,
            place=loss.place,
            attempt=loss.attempt,
            evidence={"update_ratio": usual, "limit": self.lowest_ratio, LATE_FALL: 1 - math.exp(last - early)},
            remedies=self.remedies,
        )
