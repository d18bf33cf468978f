"""Detect learning rates that are zero, that rise again after a schedule, or that are out of range."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts, LimitFacts
from mlflow_stability.vocabulary.result import FIT_SCHEDULE, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted

VANISHED = 1e-8
"""Maximum share of its highest value at which a learning rate counts as zero: steps of that size are lost in the
rounding of float32 weights."""


@dataclass(frozen=True, slots=True)
class ZeroRateFacts(Facts):
    """A learning rate that is zero, or almost zero, in all parameter groups while steps go on."""

    kind = "learning_rate_zero"
    metrics = ("since", "steps", "highest")

    since: int  # The first step at which it was so low
    steps: int  # Number of steps since then
    highest: float  # The highest learning rate before
    rate: float = 0.0  # The learning rate now, or at the end

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        steps = counted(self.steps, unit)
        if self.rate > 0:
            return (
                f"learning rate is almost 0 since {unit} {self.since}, now {self.rate:.2g}: {steps} changed almost no "
                f"weight; highest before: {self.highest:.3g}."
            )
        return (
            f"learning rate is 0 since {unit} {self.since}: {steps} changed no weight; highest before: "
            f"{self.highest:.3g}."
        )


@dataclass(slots=True)
class GroupRate:
    last: float = 0.0
    highest: float = 0.0
    smallest: float = math.inf  # the smallest rate above zero
    last_decimal: int = 0  # the place of the last digit of any rate above zero: -6 of 0.000125
    changes: int = 0
    is_held: bool = False  # whether the smallest rate stayed for several steps, unlike one that falls evenly to zero

    def note(self, rate: float) -> None:
        if rate > 0 and rate == self.last:
            self.is_held = self.is_held or rate == self.smallest
        elif rate > 0:
            self.is_held = self.is_held and rate >= self.smallest
            self.highest, self.smallest = max(self.highest, rate), min(self.smallest, rate)
            self.changes += 1
            if self.last_decimal >= FINEST_DECIMAL:  # else the schedule is not rounded: formatting takes time
                self.last_decimal = min(self.last_decimal, int(Decimal(repr(rate)).normalize().as_tuple().exponent))
        self.last = rate

    def is_zero(self, nearly_zero: float) -> bool:
        """Return whether the rate is zero or vanishes, and is not a small rate that a log rounds to zero."""
        if self.last > 0 or self.highest == 0:
            return self.last <= VANISHED * self.highest
        if self.last_decimal < FINEST_DECIMAL:
            return True  # the optimizer's own rates, or those of a log that does not round
        has_few_decimals = self.last_decimal == math.floor(math.log10(self.smallest) + 1e-9)
        if has_few_decimals and self.is_held and self.changes >= MIN_RATES:
            return False
        has_one_digit = math.isclose(self.smallest, float(f"{self.smallest:.0e}"), rel_tol=1e-6)
        return self.smallest <= nearly_zero * self.highest or not has_one_digit  # else a log may round small rates


def _group_of(rates: NDArray[np.float64]) -> GroupRate:
    group = GroupRate()
    for rate in rates.tolist():
        group.note(rate)
    return group


MIN_RATES = 4  # number of rates from which their decimals show how a log rounds
FINEST_DECIMAL = -9  # the last decimal to which a log may round its rates


@dataclass(slots=True)
class LearningRateZeroState:
    groups: dict[str, GroupRate] = field(default_factory=dict)
    first_step: int | None = None
    since: int | None = None  # the step since which all groups have a rate of zero
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class LearningRateZero(Detector):
    """The learning rate is zero, and the training goes on.

    What it sees: the learning rate of every parameter group has been zero, or a hundred-millionth of its highest value
    or less, after it was above, for {steps} steps and for {share:percent} of all steps so far. A zero that a log of few
    digits may have rounded does not count: where the smallest rate before has one digit, it must be below
    {nearly_zero:percent} of the highest one, and, if that rate stayed for several steps, one of {MIN_RATES} rates or
    more must have further decimals. Whole curves: from some step to the end, likewise.

    Why it matters: no step changes a weight any more. The loss looks as if it had converged, and all further time is
    lost. Usually the schedule is shorter than the training, as one that counts epochs where the script steps it once a
    batch.

    What to try: set the length of the schedule to the number of optimizer steps, or step it once an epoch if it counts
    epochs.

    When it is wrong: a script that goes on only to measure, with the rate set to zero on purpose.

    Reference: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    steps: int = 100  # minimum number of steps with a learning rate of zero
    share: float = 0.05  # minimum share of all steps so far
    nearly_zero: float = 0.01  # share of the highest rate; a smaller one of one digit is not rounded

    kind = "learning_rate_zero"
    of_setup = True
    noun = "a learning rate of zero"
    plural = "learning rates of zero"
    question = "Is the learning rate above zero to the end?"
    check_by_hand = "Print the learning rate of the last steps; the schedule must be as long as the training."
    order = 165
    quantities = ("learning_rate",)
    across_places = True
    remedies = (FIT_SCHEDULE,)
    state_type = LearningRateZeroState

    def step(self, state: LearningRateZeroState, point: Point) -> tuple[LearningRateZeroState, Finding | None]:
        if not point.finite:
            return state, None
        state.first_step = point.step if state.first_step is None else state.first_step
        group = state.groups.get(point.place)
        if group is None:
            group = state.groups[point.place] = GroupRate()
        group.note(point.value)
        if point.value > VANISHED * group.highest:  # nearly always: skip the check of all groups
            state.since, state.is_found = None, False
            return state, None
        groups = state.groups.values()
        highest = max(group.highest for group in groups)
        if highest == 0 or not all(group.is_zero(self.nearly_zero) for group in groups):
            state.since, state.is_found = None, False
            return state, None
        state.since = point.step if state.since is None else state.since
        steps = point.step - state.since
        if state.is_found or steps < max(self.steps, self.share * (point.step - state.first_step)):
            return state, None
        state.is_found = True
        return state, self.finding(
            point, Severity.WARNING, ZeroRateFacts(state.since, steps, highest, max(group.last for group in groups))
        )


@dataclass(frozen=True, slots=True)
class LearningRateZeroRule(Rule):
    """The learning rate was zero from some step to the end.

    What it sees: at least {fewest} points and {share:percent} of the run, up to the end, at which the learning rate of
    every parameter group was zero, or a hundred-millionth of its highest value or less, after it was above. Of zeros,
    where the smallest rate before has one digit, it must be below {nearly_zero:percent} of the highest one, and,
    if that rate stayed for several steps, one of {MIN_RATES} rates or more must have further decimals.

    When it is wrong: a script that goes on only to measure, with the rate set to zero on purpose.
    """

    kind = "learning_rate_zero"
    order = 165
    only_without_detectors = True
    remedies = LearningRateZero.remedies

    fewest: int = 5  # minimum number of logged points
    share: float = 0.05  # minimum share of the steps of the run
    nearly_zero: float = LearningRateZero().nearly_zero
    """Share of the highest rate; a smaller one of one digit is not rounded."""

    def find(self, curves: RunCurves) -> list[Finding]:
        attempt = max((curve.attempt for curve in curves.rates), default=0)
        rates = [curve for curve in curves.rates if curve.attempt == attempt and curve.finite.all()]
        used = [curve for curve in rates if len(curve.values) and curve.values.max() > 0]
        if not used or any(curve.values[-1] > VANISHED * curve.values.max() for curve in used):
            return []
        at_zero = [curve.values for curve in used if curve.values[-1] == 0]
        if not all(_group_of(values).is_zero(self.nearly_zero) for values in at_zero):
            return []
        firsts = [int(np.flatnonzero(curve.values > VANISHED * curve.values.max())[-1]) + 1 for curve in used]
        curve, first = max(zip(used, firsts, strict=True), key=lambda pair: int(pair[0].steps[pair[1]]))
        since, last = int(curve.steps[first]), int(curve.steps[-1])
        if len(curve.values) - first < self.fewest or last - since < self.share * (last - int(curve.steps[0])):
            return []
        highest = max(float(curve.values.max()) for curve in used)
        rate = max(float(curve.values[-1]) for curve in used)
        facts = ZeroRateFacts(since, last - since, highest, rate)
        return [self.finding(curve, Severity.WARNING, facts, since, last)]


@dataclass(frozen=True, slots=True)
class RateRiseFacts(Facts):
    kind = "learning_rate_rise"

    learning_rate: float  # The learning rate now, or at the end
    lowest: float  # The lowest one after the highest
    lowest_step: int  # The step of the lowest one
    highest: float  # The highest one before

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        return (
            f"learning rate fell from {self.highest:.3g} to {self.lowest:.3g} at {unit} {self.lowest_step} and rose "
            f"again, to {self.learning_rate:.3g}."
        )


@dataclass(slots=True)
class LearningRateRiseState:
    last: float = 0.0
    highest: float = 0.0
    lowest: float = 0.0
    lowest_step: int = 0
    steps: int = 0  # number of rises in a row, each of them small
    is_found: bool = False  # whether it was found; a cyclic schedule is reported once


@dataclass(frozen=True, slots=True)
class LearningRateRise(Detector):
    """The learning rate rises again after a schedule had lowered it to almost nothing.

    What it sees: a rate that had fallen to {low:percent} of its highest value or less, and has risen again to
    {high:percent} of it, in {steps} or more small steps. INFO while the training runs, for a cyclic schedule may be
    meant; a warning where the training ended so, after one fall and one rise.

    Why it matters: the end of a schedule is where the loss gains most. A training that ends at a high rate loses that.
    Usually the schedule is shorter than the training, as a cosine that is stepped twice for each optimizer step.

    What to try: set the length of the schedule to the number of optimizer steps; call `scheduler.step()` once for each.

    When it is wrong: cyclic schedules. Restarts, which raise the rate in one step, do not count.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html
    """

    low: float = 0.02  # share of the highest rate that it must have fallen to
    high: float = 0.5  # share of the highest rate that it must have risen to again
    steps: int = 10  # minimum number of rises; fewer are a restart

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
    restarts had begun again and was falling.

    When it is wrong: a training with a cyclic schedule that was stopped between two restarts.
    """

    kind = "learning_rate_rise"
    order = 166
    remedies = LearningRateRise.remedies

    low: float = LearningRateRise().low  # share of the highest rate that it must have fallen to
    high: float = LearningRateRise().high  # share of the highest rate that it must have at the end
    steps: int = LearningRateRise().steps  # minimum number of rises; fewer are a restart

    def find(self, curves: RunCurves) -> list[Finding]:
        """Judge the last attempt, and return the finding of its first parameter group that has one."""
        attempt = max((curve.attempt for curve in curves.rates), default=0)
        findings = (self._judge(curve) for curve in curves.rates if curve.attempt == attempt)
        return [finding for finding in findings if finding is not None][:1]

    def _judge(self, curve: Curve) -> Finding | None:
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
        """Return the point before the last restart; None unless the rate only fell between restarts and since."""
        changes = np.diff(rates)
        jumps = np.flatnonzero(changes > self.high * float(rates.max()))
        if not len(jumps) or not jumps[-1]:  # nothing fell before a jump of the first value
            return None
        last, before = int(jumps[-1]), int(jumps[-2]) + 1 if len(jumps) > 1 else int(np.argmax(rates[: jumps[-1]]))
        between, since = changes[before:last], changes[last + 1 :]
        # A rate that stays as it is afterwards belongs to another phase of the training.
        falls = (between <= 0).all() and (since <= 0).all() and bool((since < 0).any())
        return last if falls and len(between) >= self.steps and len(since) < len(between) else None


@dataclass(frozen=True, slots=True)
class LearningRateRangeFacts(LimitFacts):
    kind = "learning_rate_out_of_range"
    metrics: ClassVar = {"learning_rate": "value", "limit": "threshold"}

    is_high: bool  # Whether it was above the threshold in `in_a_row` steps; else it never was in that many first steps

    def sentence(self, step: int, unit: str = "step", /) -> str:
        where = f"above {self.threshold:g} for" if self.is_high else f"never above {self.threshold:g} in"
        return f"learning rate {self.value:.3g} at {unit} {step}, {where} {self.in_a_row} {unit}s."


@dataclass(slots=True)
class LearningRateOutOfRangeState:
    steps: int = 0
    highest: float = 0.0
    high: int = 0  # number of high steps in a row
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class LearningRateOutOfRange(Detector):
    """The learning rate is outside the usual range for Adam.

    What it sees: a rate above {highest} for {high_steps} steps, or one that never exceeded {lowest} in the first
    {low_steps} steps. One finding per parameter group. The end of a schedule, where the rate goes to zero, does not
    count.

    Why it matters: a rate that is off by powers of ten is usually a configuration error.

    What to try: check the configuration; for Adam 1e-5 to 1e-3 is usual.

    When it is wrong: optimizers other than the Adam family: SGD uses 0.1, Muon 0.02, Adafactor its own.

    Reference: https://github.com/google-research/tuning_playbook
    """

    highest: float = 1e-2  # learning rate above which it is unusually high
    high_steps: int = 20  # number of high steps in a row
    lowest: float = 1e-8  # learning rate that must be reached within `low_steps`
    low_steps: int = 1000  # number of first steps for `lowest`

    kind = "learning_rate_out_of_range"
    noun = "a learning rate out of range"
    plural = "learning rates out of range"
    order = 420
    on_request = True
    quantities = ("learning_rate",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (Remedy(Action.CHECK_CONFIGURED_RATE), Remedy(Action.CHECK_SCHEDULE))
    state_type = LearningRateOutOfRangeState

    def step(
        self, state: LearningRateOutOfRangeState, point: Point
    ) -> tuple[LearningRateOutOfRangeState, Finding | None]:
        rate = point.value
        if state.is_found or not point.finite:
            return state, None
        state.steps += 1
        state.highest = max(state.highest, rate)
        state.high = state.high + 1 if rate > self.highest else 0
        if state.high >= self.high_steps:
            facts = LearningRateRangeFacts(rate, self.highest, is_high=True, in_a_row=state.high)
        elif state.steps == self.low_steps and state.highest < self.lowest:
            facts = LearningRateRangeFacts(rate, self.lowest, is_high=False, in_a_row=state.steps)
        else:
            return state, None
        state.is_found = True
        return state, self.finding(point, Severity.INFO, facts)
