"""Says when steps go on though the learning rate is zero."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text import counted


@dataclass(frozen=True, slots=True)
class ZeroRateFacts(Facts):
    """A learning rate that is zero in all parameter groups while steps go on."""

    kind: ClassVar[str] = "learning_rate_zero"
    metrics = ("since", "steps", "highest")

    since: int
    """The first step at which it was zero."""
    steps: int
    """Number of steps since then."""
    highest: float
    """The highest learning rate before."""

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        """``learning rate is 0 since step 151: 100 steps have changed nothing; highest before: 0.003.``"""
        return (
            f"learning rate is 0 since {unit} {self.since}: {counted(self.steps, unit)} changed no weight; highest "
            f"before: {self.highest:.3g}."
        )


@dataclass(slots=True)
class GroupRate:
    """What has been seen of one parameter group."""

    last: float = 0.0
    highest: float = 0.0
    smallest: float = math.inf
    """The smallest rate above zero."""

    def is_zero(self, nearly_zero: float) -> bool:
        """Whether it is zero now, and no rounded number; it may be zero from the start on."""
        return self.last == 0 and (self.highest == 0 or not _may_be_rounded(self.smallest, self.highest, nearly_zero))


def _may_be_rounded(smallest: float, highest: float, nearly_zero: float) -> bool:
    """Whether zero may be what a log of few digits prints for a small rate: its smallest number has one digit."""
    return smallest > nearly_zero * highest and math.isclose(smallest, float(f"{smallest:.0e}"), rel_tol=1e-6)


@dataclass(slots=True)
class LearningRateZeroState:
    """What has been seen so far."""

    groups: dict[str, GroupRate] = field(default_factory=dict)
    """Each parameter group."""
    first: int | None = None
    since: int | None = None
    """The first step of those with a rate of zero in all groups, up to the last."""
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class LearningRateZero(Detector):
    """The learning rate is zero, and the training goes on.

    What it sees: the learning rate of every parameter group has been exactly zero, after it was above, for {steps}
    steps and for {share:percent} of all steps so far. A zero that a log of few digits may have rounded does not count:
    where the smallest rate before has one digit, it must be below {nearly_zero:percent} of the highest one. Whole
    curves: from some step to the end, likewise.

    Why it matters: no step changes a weight any more. The loss looks as if it had converged, and all further time is
    lost. Usually the schedule is shorter than the training, as one that counts epochs where the script steps it once a
    batch.

    What to try: set the length of the schedule to the number of optimizer steps; compare it with where the rate reached
    zero.

    When it is wrong: a script that goes on only to measure, with the rate set to zero on purpose.

    Reference: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    steps: int = 100
    """Minimum number of steps with a learning rate of zero."""
    share: float = 0.05
    """Minimum share of all steps so far."""
    nearly_zero: float = 0.01
    """Share of the highest rate; a smaller one of one digit is not rounded."""

    kind = "learning_rate_zero"
    of_setup = True
    noun = "a learning rate of zero"
    plural = "learning rates of zero"
    question = "Is the learning rate above zero to the end?"
    check_by_hand = "Print the learning rate of the last steps; the schedule must be as long as the training."
    order = 165
    symptom = Symptom.NONE
    quantities = ("learning_rate",)
    across_places = True
    remedies = (Remedy(Action.MATCH_SCHEDULE_LENGTH),)
    state_type = LearningRateZeroState

    def step(self, state: LearningRateZeroState, point: Point) -> tuple[LearningRateZeroState, Finding | None]:
        """Look at the next learning rate."""
        if not point.finite:
            return state, None
        state.first = point.step if state.first is None else state.first
        group = state.groups.get(point.place)
        if group is None:
            group = state.groups[point.place] = GroupRate()
        group.last = point.value
        if point.value > 0:  # as nearly always: not every group is at zero
            group.highest, group.smallest = max(group.highest, point.value), min(group.smallest, point.value)
            state.since, state.is_found = None, False
            return state, None
        highest = max(known.highest for known in state.groups.values())
        if highest == 0 or not all(known.is_zero(self.nearly_zero) for known in state.groups.values()):
            state.since, state.is_found = None, False
            return state, None
        state.since = point.step if state.since is None else state.since
        steps = point.step - state.since
        if state.is_found or steps < max(self.steps, self.share * (point.step - state.first)):
            return state, None
        state.is_found = True
        return state, self.finding(point, Severity.WARNING, ZeroRateFacts(state.since, steps, highest))


@dataclass(frozen=True, slots=True)
class LearningRateZeroRule(Rule):
    """The learning rate was zero from some step to the end.

    What it sees: at least {fewest} points and {share:percent} of the run, up to the end, at which the learning rate of
    every parameter group was exactly zero, after it was above; where the smallest rate before has one digit, it must be
    below {nearly_zero:percent} of the highest one.

    Why it matters: these steps changed no weight.

    What to try: set the length of the schedule to the number of optimizer steps.

    When it is wrong: a script that goes on only to measure, with the rate set to zero on purpose.

    Reference: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    kind = "learning_rate_zero"
    order = 165
    only_without_detectors = True
    remedies = LearningRateZero.remedies

    fewest: int = 5
    """Minimum number of logged points."""
    share: float = 0.05
    """Minimum share of the steps of the run."""
    nearly_zero: float = LearningRateZero().nearly_zero
    """Share of the highest rate; a smaller one of one digit is not rounded."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The last stretch of the last attempt, of all parameter groups together."""
        attempt = max((curve.attempt for curve in curves.rates), default=0)
        rates = [curve for curve in curves.rates if curve.attempt == attempt and curve.finite.all()]
        lasting = [curve for curve in rates if len(curve.values) and curve.values.max() > 0]
        if not lasting or any(curve.values[-1] != 0 for curve in lasting):
            return []
        positive = [curve.values[curve.values > 0] for curve in lasting]
        if any(_may_be_rounded(float(rates.min()), float(rates.max()), self.nearly_zero) for rates in positive):
            return []
        firsts = [int(np.flatnonzero(curve.values)[-1]) + 1 for curve in lasting]
        curve, first = max(zip(lasting, firsts, strict=True), key=lambda pair: int(pair[0].steps[pair[1]]))
        since, last = int(curve.steps[first]), int(curve.steps[-1])
        if len(curve.values) - first < self.fewest or last - since < self.share * (last - int(curve.steps[0])):
            return []
        facts = ZeroRateFacts(since, last - since, max(float(curve.values.max()) for curve in lasting))
        return [self.finding(curve, Severity.WARNING, facts, since, last)]
