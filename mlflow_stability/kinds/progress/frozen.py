"""Says when a loss froze: the very same number again and again, after real noise or from the start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.log_resolution import quantum_of
from mlflow_stability.kinds.progress.plateau import Plateau
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Action, Episode, Remedy, Severity


@dataclass(frozen=True, slots=True)
class FrozenRule(Rule):
    """The loss froze: it repeats exactly the same value to the end, or is always zero.

    What it sees: at least {fewest} values and {fewest_share:percent} of the run, up to the end, that are equal to the
    last digit, where neighbours among the {before} values before differed by {quanta} times that digit and never had
    that value. Or {fewest_zeros} and more values that are all exactly zero. A loss that had fallen below
    {loss_fall.LITTLE:percent} of its start is learnt, and may go to zero.

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

    def find(self, curves: RunCurves) -> list[Episode]:
        """The training losses of the whole model that froze."""
        judged = [curve for curve in curves.losses if not curve.part]
        return [found for curve in judged if (found := self._of(curve)) is not None]

    def _of(self, curve: Curve) -> Episode | None:
        finite = curve.finite
        values, steps = curve.values[finite], curve.steps[finite]
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
            return self._episode(curve, steps, 0, last, f"{curve.name} is exactly 0 in all of its {count} points.")
        before = values[max(0, first - self.before) : first]
        moved = float(np.median(np.abs(np.diff(before)))) if len(before) >= 8 else 0.0
        if moved <= self.quanta * quantum_of(values) or (before == last).any():
            return None
        if before[-3:].min() <= curve.floor:
            return None  # it had been learnt before, and went on to what the format can tell from zero
        level = float(np.median(before))
        way = "fell" if last < level else "rose"
        message = f"{curve.name} {way} from about {level:.4g} to exactly {last:.4g} in one point, at step "
        message += f"{int(steps[first])}, and stayed there: {count} equal values up to step {int(steps[-1])} "
        message += f"(threshold {self.fewest})."
        return self._episode(curve, steps, first, last, message)

    def _episode(self, curve: Curve, steps: NDArray[np.int64], first: int, last: float, message: str) -> Episode:
        start = int(steps[first])
        return Episode(
            self.kind,
            Severity.WARNING,
            start,
            start,
            int(steps[-1]),
            message,
            recovered=False,
            metric=curve.name,
            place=curve.place,
            attempt=curve.attempt,
            evidence={"last": last, "equal": float(len(steps) - first)},
            remedies=self.remedies,
        )
