"""Find losses that fall below zero and never slow down: they have no lower bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves, after_last
from mlflow_stability.kinds.rule import Rule, present
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

PARTS = 8
"""Number of parts of a run whose medians are compared."""


@dataclass(frozen=True, slots=True)
class UnboundedFallFacts(Facts):
    """A loss that fell below zero without slowing down."""

    kind = "unbounded_fall"
    metrics = ("early", "last")

    signal: str  # The loss, by the name that the log gives it
    last: float  # Its median in the last eighth of the run, in its unit
    early: float  # Its median size in the first points, in the unit of the loss
    threshold: float  # From which size below zero on it is a finding, in the unit of the loss

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"{self.signal} fell to {self.last:.4g} without slowing down; its size was {self.early:.4g} in the first "
            f"{unit}s (threshold {-self.threshold:.4g}). Such a loss has no lower bound."
        )


@dataclass(frozen=True, slots=True)
class UnboundedFallRule(Rule):
    """A loss falls below zero, and ever further.

    What it sees: a loss whose level measures progress, of {fewest_points} points or more, in {PARTS} equal parts. The
    medians of the second half are below zero, each lower than the one before, the last fall is at least {pace:percent}
    of the largest, and the last median is {times} times as far from zero as the first points, and as 1. From {far}
    times on, it is enough that the second half is below zero.

    When it is wrong: a loss that is maximised on purpose, as to forget data.
    """

    kind = "divergence"
    order = 46
    severities = (Severity.CRITICAL,)
    remedies = (Remedy(Action.CHECK_SIGN_OF_LOSS),)

    times: float = 30.0
    """Minimum ratio of its size at the end to that in the first points. A log-likelihood of constant targets falls by a
    few units for each dimension."""
    pace: float = 0.5
    """Minimum ratio of the last fall from part to part to the largest one; a loss with a minimum slows down."""
    far: float = 1e4
    """The same ratio of a loss that may also rise again: no likelihood falls as far."""
    fewest_points: int = 64
    """Minimum number of points."""

    def find(self, curves: RunCurves) -> list[Finding]:
        return present(self._judge(curve) for curve in curves.losses if not curve.part and curve.has_level)

    def _judge(self, curve: Curve) -> Finding | None:
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        if len(values) < self.fewest_points or values[-1] >= 0:
            return None
        early, limit = curve.early_size, self.times * max(1.0, curve.early_size)
        medians = np.array([np.median(part) for part in np.array_split(values, PARTS)])
        falls = -np.diff(medians)
        second = PARTS // 2
        is_far = bool((medians[second:] < 0).all()) and medians[-1] <= -self.far * max(1.0, early)
        keeps_falling = medians[second] < 0 and bool((falls[second:] > 0).all())
        is_fast = keeps_falling and medians[-1] <= -limit and falls[-1] >= self.pace * falls.max()
        if not is_far and not is_fast:
            return None
        first = after_last(values >= 0)
        facts = UnboundedFallFacts(curve.name, float(medians[-1]), early, limit)
        return self.finding(curve, Severity.CRITICAL, facts, steps[first], steps[-1], peak=steps[-1])
