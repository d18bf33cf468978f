"""Says when a loss froze: the very same number again and again, after real noise or from the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.log_resolution import quantum_of
from mlflow_stability.kinds.progress.plateau import LastLevelFacts, Plateau
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class FrozenFacts(LastLevelFacts):
    """A loss that repeats exactly the same value, `last`."""

    kind: ClassVar[str] = "frozen"
    metrics = ("last", "equal")

    equal: int
    """Number of equal values, up to the last."""
    last_step: int
    """The step of the last of them."""
    threshold: int
    """From how many equal values on it is frozen."""
    before: float | None = None
    """Its level before, in the unit of the loss; None where all of its values are equal."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss fell from about 2.3 to exactly 0 in one point, at step 400, and stayed there: 50 equal values …``"""
        if self.before is None:
            return f"{self.signal} is exactly {self.last:.4g} in all of its {self.equal} points."
        return (
            f"{self.signal} {'fell' if self.last < self.before else 'rose'} from about {self.before:.4g} to exactly "
            f"{self.last:.4g} in one point, at {unit} {step}, and stayed there: {self.equal} equal values up to "
            f"{unit} {self.last_step} (threshold {self.threshold})."
        )


@dataclass(frozen=True, slots=True)
class FrozenRule(Rule):
    """The loss froze: it repeats exactly the same value to the end, or is always zero.

    What it sees: at least {fewest} values and {fewest_share:percent} of the run, up to the end, that are equal to the
    last digit, where neighbours among the {before} values before differed by {quanta} times that digit and never had
    that value. Or {fewest_zeros} and more values that are all exactly zero. A loss that had fallen below
    {loss_fall.LEARNT:percent} of its start is learnt, and may go to zero.

    Why it matters: no real batch gives the same loss twice. What is logged is no longer what is trained, or broken
    weights give zero for every input.

    What to try: inspect the outputs and labels of one batch; look for NaN in the weights or gradients; check that the
    loss is not masked, detached or multiplied by zero.

    When it is wrong: one fixed batch on purpose, at a learning rate of zero.

    Reference: Karpathy 2019, A recipe for training neural networks ("become one with the data").
    """

    kind = "plateau"
    order = 70
    remedies = (
        Remedy(Action.INSPECT_OUTPUTS_AND_LABELS),
        Remedy(Action.CHECK_WEIGHTS_FOR_NAN),
        *Plateau.remedies,
    )

    fewest: int = 20
    """Minimum number of equal values in a row, up to the last."""
    fewest_zeros: int = 8
    """Minimum number of values where all are zero."""
    fewest_share: float = 0.02
    """Minimum share of the run."""
    before: int = 20
    """Number of values before that show how much neighbours differed."""
    quanta: float = 5.0
    """Minimum difference between neighbours before, as a multiple of the last logged digit."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The training losses of the whole model that froze."""
        judged = [curve for curve in curves.losses if not curve.part]
        return [found for curve in judged if (found := self._of(curve)) is not None]

    def _of(self, curve: Curve) -> Finding | None:
        finite = curve.finite
        values = curve.values[finite]
        if len(values) < self.fewest_zeros or not finite[-1]:
            return None
        last = float(values[-1])
        other = np.flatnonzero(values != last)
        first = int(other[-1]) + 1 if len(other) else 0
        count = len(values) - first
        if first > 0 and count < max(self.fewest, self.fewest_share * len(values)):
            return None
        if first == 0:
            if last != 0 or not curve.has_level:
                return None  # a constant that is not zero is a plateau like others; a policy's loss has no level
            return self._episode(curve, first, count, None)
        before = values[max(0, first - self.before) : first]
        moved = float(np.median(np.abs(np.diff(before)))) if len(before) >= 8 else 0.0
        if moved <= self.quanta * quantum_of(values) or (before == last).any():
            return None
        if before[-3:].min() <= curve.floor:
            return None  # it had been learnt before, and went on to what the format can tell from zero
        return self._episode(curve, first, count, float(np.median(before)))

    def _episode(self, curve: Curve, first: int, count: int, before: float | None) -> Finding:
        steps = curve.steps[curve.finite]
        last = float(curve.values[-1])
        facts = FrozenFacts(curve.name, last, count, int(steps[-1]), self.fewest, before)
        return self.finding(curve, Severity.WARNING, facts, steps[first], steps[-1])
