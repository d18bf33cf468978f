"""Says when a learning rate that a schedule had lowered to almost nothing rises again, to the end of the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class RateRiseFacts(Facts):
    """A learning rate that rose again after it had fallen."""

    kind: ClassVar[str] = "learning_rate_rise"
    metrics = ("learning_rate", "lowest", "lowest_step", "highest")

    learning_rate: float
    """The learning rate now, or at the end."""
    lowest: float
    """The lowest one after the highest."""
    lowest_step: int
    """The step of the lowest one."""
    highest: float
    """The highest one before."""

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        """``learning rate fell from 0.003 to 1.2e-07 at step 225 and rose again, to 0.0029 at step 450.``"""
        return (
            f"learning rate fell from {self.highest:.3g} to {self.lowest:.3g} at {unit} {self.lowest_step} and rose "
            f"again, to {self.learning_rate:.3g}."
        )


@dataclass(slots=True)
class LearningRateRiseState:
    """What has been seen of one parameter group."""

    last: float = 0.0
    highest: float = 0.0
    lowest: float = 0.0
    lowest_step: int = 0
    steps: int = 0
    """Number of rises in a row, each of them small."""
    is_found: bool = False
    """Whether it was found; a cyclic schedule is reported once."""


@dataclass(frozen=True, slots=True)
class LearningRateRise(Detector):
    """The learning rate rises again after a schedule had lowered it to almost nothing.

    What it sees: a rate that had fallen to {low:percent} of its highest value or less, and has risen again to
    {high:percent} of it, in {steps} or more small steps. INFO while the training runs, for a cyclic schedule may be
    meant; a warning where the training ended so, after one fall and one rise.

    Why it matters: the end of a schedule is where the loss gains most. A training that ends at a high rate loses that.
    Usually the schedule is shorter than the training, as a cosine that is stepped twice for each optimizer step.

    What to try: set the length of the schedule to the number of optimizer steps; call `scheduler.step()` once for each.

    When it is wrong: cyclic schedules. Restarts, which raise the rate in one step, are none.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html
    """

    low: float = 0.02
    """Share of the highest rate that it must have fallen to."""
    high: float = 0.5
    """Share of the highest rate that it must have risen to again."""
    steps: int = 10
    """Minimum number of rises; fewer are a restart."""

    kind = "learning_rate_rise"
    of_setup = True
    noun = "a rising learning rate"
    plural = "rising learning rates"
    order = 166
    quantities = ("learning_rate",)
    severities = (Severity.INFO, Severity.WARNING)
    remedies = (Remedy(Action.MATCH_SCHEDULE_LENGTH), Remedy(Action.CHECK_SCHEDULE))
    state_type = LearningRateRiseState

    def step(self, state: LearningRateRiseState, point: Point) -> tuple[LearningRateRiseState, Finding | None]:
        """Look at the next learning rate."""
        rate, last, state.last = point.value, state.last, point.value
        if not point.finite:
            return state, None
        if rate >= state.highest or (rate < state.lowest and state.highest > 0):
            state.highest = max(rate, state.highest)
            state.lowest, state.lowest_step, state.steps = rate, point.step, 0
        elif rate > last:
            state.steps += 1
        risen = rate >= self.high * state.highest > 0 and state.lowest <= self.low * state.highest
        if state.is_found or not risen or state.steps < self.steps:
            return state, None
        state.is_found = True
        facts = RateRiseFacts(rate, state.lowest, state.lowest_step, state.highest)
        return state, self.finding(point, Severity.INFO, facts)


@dataclass(frozen=True, slots=True)
class LearningRateRiseRule(Rule):
    """The training ended at a learning rate that had risen again after a schedule had lowered it to almost nothing.

    What it sees: a rate that fell to {low:percent} of its highest value or less, and was at {high:percent} of its
    highest value or more at the end: because it rose in {steps} or more small steps, once, or because a schedule with
    restarts had begun anew and was falling again.

    Why it matters: the end of a schedule is where the loss gains most. A training that ends at a high rate loses that.

    What to try: set the length of the schedule to the number of optimizer steps; call `scheduler.step()` once for each;
    let a training with restarts end just before one.

    When it is wrong: a training with a cyclic schedule that was stopped between two restarts.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html
    """

    kind = "learning_rate_rise"
    order = 166
    remedies = LearningRateRise.remedies

    low: float = LearningRateRise().low
    """Share of the highest rate that it must have fallen to."""
    high: float = LearningRateRise().high
    """Share of the highest rate that it must have at the end."""
    steps: int = LearningRateRise().steps
    """Minimum number of rises; fewer are a restart."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The first parameter group of the last attempt."""
        last = max((curve.attempt for curve in curves.rates), default=0)
        found = (self._of(curve) for curve in curves.rates if curve.attempt == last)
        return [finding for finding in found if finding is not None][:1]

    def _of(self, curve: Curve) -> Finding | None:
        rates, steps = curve.values[curve.finite], curve.steps[curve.finite]
        if len(rates) < 2 * self.steps:
            return None
        top = int(np.argmax(rates[: len(rates) // 2 + 1]))
        low = top + int(np.argmin(rates[top:]))
        highest, lowest, last = float(rates[top]), float(rates[low]), float(rates[-1])
        falls, rises = np.diff(rates[top : low + 1]), np.diff(rates[low:])
        slack = 1e-3 * highest
        once = (falls <= slack).all() and (rises >= -slack).all() and (rises > 0).sum() >= self.steps
        small = not len(rises) or float(rises.max()) < self.high * highest / 2
        if highest <= 0 or last < self.high * highest:
            return None
        if not (once and small):
            restart = self._last_restart(rates)
            if restart is None:
                return None
            low, lowest, highest = restart, float(rates[restart]), float(rates[restart + 1])
        if lowest > self.low * highest:
            return None
        facts = RateRiseFacts(last, lowest, int(steps[low]), highest)
        return self.finding(curve, Severity.WARNING, facts, steps[low], steps[-1], peak=steps[-1])

    def _last_restart(self, rates: np.ndarray) -> int | None:
        """The point before the last restart, where the rate has only fallen between restarts and since."""
        changes = np.diff(rates)
        jumps = np.flatnonzero(changes > self.high * float(rates.max()))
        if not len(jumps):
            return None
        last, before = int(jumps[-1]), int(jumps[-2]) + 1 if len(jumps) > 1 else int(np.argmax(rates[: jumps[-1]]))
        between, since = changes[before:last], changes[last + 1 :]
        # A rate that stays as it is afterwards belongs to another phase of the training.
        falls = (between <= 0).all() and (since <= 0).all() and bool((since < 0).any())
        return last if falls and len(between) >= self.steps and len(since) < len(between) else None
