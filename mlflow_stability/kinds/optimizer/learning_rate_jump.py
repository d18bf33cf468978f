"""Detect jumps of the learning rate above its highest value."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.detectors.learning_rate_restart import MAX_RESTART, MIN_RISE, RESTART_STEPS
from mlflow_stability.vocabulary.facts import SINCE, Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class LearningRateJumpFacts(Facts):
    kind = "learning_rate_jump"
    metrics: ClassVar = {
        "learning_rate": "learning_rate",
        "before": "before",
        "highest_before": "highest_before",
        "loss": "loss",
        "level_of_loss": "loss_before",
        SINCE: "found_first",
    }

    learning_rate: float  # The learning rate
    before: float  # The one of the step before
    highest_before: float  # The highest one before
    loss: float | None = None  # Median of the losses since then, where that made it a warning
    loss_before: float | None = None  # Median of the losses before
    found_first: int | None = None  # The step of the jump, where the losses after it made it a warning

    def sentence(self, step: int, unit: str = "step", /) -> str:
        at = step if self.found_first is None else self.found_first
        jump = f"learning rate jumped from {self.before:.3g} to {self.learning_rate:.3g} at {unit} {at}"
        jump += f"; highest before: {self.highest_before:.3g}."
        if self.loss is None or self.loss_before is None:
            return jump
        ratio = self.loss / self.loss_before
        return f"{jump} The loss is {self.loss:.3g} since then, {ratio:.3g} times its level before."


@dataclass(slots=True)
class Rate:
    last: float
    highest: float
    first: float = 0.0
    last_step: int = 0
    changed_at: int = 0  # the step of its last change
    stage: float = 0.0  # rise of the last stage of a warm-up that rises once an epoch; 0 without a stage
    warm_up_is_over: bool = False  # whether it has decreased, or has been constant for long
    pending_jump: tuple[Point, float, float] | None = None
    """A jump that may be the first step of a linear warm-up, the rate before it, and the highest rate before it."""
    jumped_at: int | None = None  # the step of the last jump
    highest_before_jump: float = 0.0
    rises: bool = True  # whether its last change was a rise
    changes: int = 0
    turns: int = 0  # number of changes that go the other way than the change before
    is_barred: bool = False  # whether a rollback undid the present rate, which does not count until it has decreased

    def after_rollback(self) -> Rate:
        rate = replace(self, pending_jump=None, jumped_at=None, highest_before_jump=0.0, is_barred=False)
        if self.jumped_at is None or self.last_step - self.jumped_at > RESTART_STEPS:
            return rate
        return replace(rate, highest=self.highest_before_jump, warm_up_is_over=True, is_barred=True)


@dataclass(slots=True)
class JumpInWarmUp:
    """A jump that may be the next stage of a warm-up, and the losses around it."""

    point: Point
    facts: LearningRateJumpFacts
    before: Mapping[str, float]  # median of the last losses before it, by place
    after: dict[str, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class LearningRateJumpState:
    groups: dict[str, Rate] = field(default_factory=dict)
    found_at: int = -1  # the step of the last finding: groups that jump together are one
    losses: dict[str, deque[float]] = field(default_factory=dict)  # the last losses, by place
    watched: JumpInWarmUp | None = None


TURNS_SHARE = 0.25  # minimum share of changes that go the other way than the one before, of a cyclic rate
FEWEST_TURNS = 6  # minimum number of these


@dataclass(frozen=True, slots=True)
class LearningRateJump(Detector):
    """The learning rate jumped above its highest value so far.

    What it sees: a learning rate that grows by a factor of {smallest_rise} in one step, to {beyond_highest} times its
    highest value so far or more. Before it has decreased for the first time, or been constant for {constant} steps, it
    may still be warming up. Then only a factor of {smallest_rise_in_warm_up} counts, unless the next step rises by
    {same_pace:percent} of that or more, as in a linear warm-up from near zero. A jump from a first rate of
    {warm_up_start} or less is INFO, as a warm-up may rise once an epoch, and its next stages do not count. It becomes a
    warning if the median of {compared_losses} losses within the next {watched_losses} is {worse} times that before it.
    Restarts (cosine with warm restarts, cyclic schedules) return to the highest rate and do not count; nor does a
    decrease. A rate that goes up and down, as one that follows the length of each batch, has to reach {smallest_rise}
    times its highest value: {TURNS_SHARE:percent} of its changes, and {FEWEST_TURNS} or more, are turns.
    Groups that jump in the same step are one finding.

    Why it matters: the schedule, or a resumed run that lost its schedule, uses an untested rate. Later changes
    in the loss have their cause here.

    What to try: check the schedule, above all at its end and after a resume; warm up to the new rate over some hundred
    steps.

    When it is wrong: a warm-up that begins above {warm_up_start} and whose first stage is more than
    {smallest_rise_in_warm_up} times lower than the second, or lasts {constant} steps; a rate that was set by hand on
    purpose. No finding in 141 healthy trainings of 64 kinds.

    Reference: Goyal et al. (arXiv:1706.02677, 2.2); SGDR (arXiv:1608.03983)
    """

    smallest_rise: float = MIN_RISE  # minimum factor in one step once the rate has decreased before
    smallest_rise_in_warm_up: float = 5.0  # minimum factor in one step before that
    constant: int = 1000  # number of steps without a change that end the warm-up
    same_pace: float = 0.5  # minimum rise of the next step, as a share of the jump, for both to be one linear warm-up
    warm_up_start: float = 1e-4  # first rate up to which a jump may be the second stage of a warm-up by epochs
    compared_losses: int = 8  # number of losses before and after that jump whose medians are compared
    watched_losses: int = 64  # number of losses for which it is followed
    worse: float = 1.3  # minimum ratio of the loss after it to the loss before for a warning
    beyond_highest: float = MAX_RESTART  # minimum ratio to the highest rate so far

    kind = "learning_rate_jump"
    instability = Instability.HARMFUL
    noun = "a learning rate jump"
    plural = "learning rate jumps"
    question = "Did the learning rate jump?"
    check_by_hand = "Plot scheduler.get_last_lr() over all steps before training; check the step after a resume."
    symptom = Symptom.LEARNING_RATE
    order = 120
    quantities = ("loss", "learning_rate")
    severities = (Severity.INFO, Severity.WARNING)
    across_places = True
    remedies = (Remedy(Action.CHECK_SCHEDULE_AT_RESUME), Remedy(Action.WARM_UP_TO_NEW_RATE))
    state_type = LearningRateJumpState

    def after_rollback(self, state: LearningRateJumpState) -> LearningRateJumpState:
        """Keep the learning rates, except one that had jumped just before: it is still untested."""
        return LearningRateJumpState({place: group.after_rollback() for place, group in state.groups.items()})

    def step(self, state: LearningRateJumpState, point: Point) -> tuple[LearningRateJumpState, Finding | None]:
        if point.quantity == "loss":
            return state, self._look_at_loss(state, point)
        return state, self._look_at_rate(state, point) if point.finite else None

    def _look_at_rate(self, state: LearningRateJumpState, point: Point) -> Finding | None:
        rate, group = point.value, state.groups.get(point.place)
        if group is None:
            state.groups[point.place] = Rate(rate, rate, rate, point.step, point.step)
            return None
        last, highest, pending, seen = group.last, group.highest, group.pending_jump, group.last_step
        group.last, group.pending_jump, group.last_step = rate, None, point.step
        group.is_barred = group.is_barred and rate > highest * self.beyond_highest
        if rate != last:
            group.turns += (rate > last) != group.rises
            group.rises, group.changes = rate > last, group.changes + 1
            in_stages = group.stage > 0 or self._may_be_first_stage(group, last)
            if seen + 1 - group.changed_at >= self.constant and not in_stages:
                group.warm_up_is_over = True
            group.changed_at = point.step
        if pending is not None:
            jumped, before, _ = pending
            if rate - last < self.same_pace * (jumped.value - before):
                in_stages = self._may_be_first_stage(group, before)
                group.stage = jumped.value - before if in_stages else 0.0
                group.warm_up_is_over = not in_stages
                return self._jump(state, group, *pending)
        if rate < last:
            group.warm_up_is_over = True
        if rate <= last or group.is_barred:
            return None
        group.highest = max(rate, highest)
        if group.stage and rate - last <= (1 + self.same_pace) * group.stage:
            return None
        is_restless = group.turns >= max(FEWEST_TURNS, TURNS_SHARE * group.changes)
        if last > 0 and rate >= highest * (self.smallest_rise if is_restless else self.beyond_highest):
            if group.warm_up_is_over and rate >= last * self.smallest_rise:
                return self._jump(state, group, point, last, highest)
            if not group.warm_up_is_over and rate >= last * self.smallest_rise_in_warm_up:
                group.pending_jump = (point, last, highest)
        return None

    def _may_be_first_stage(self, group: Rate, rate: float) -> bool:
        """Return whether a rate may be the first stage of a warm-up that rises once an epoch."""
        return not group.warm_up_is_over and rate == group.first <= self.warm_up_start

    def _jump(
        self, state: LearningRateJumpState, group: Rate, point: Point, last: float, highest: float
    ) -> Finding | None:
        group.jumped_at, group.highest_before_jump = point.step, highest
        if state.found_at == point.step:
            return None
        state.found_at = point.step
        facts = LearningRateJumpFacts(point.value, last, highest)
        before = {
            place: median(losses) for place, losses in state.losses.items() if len(losses) == self.compared_losses
        }
        if not group.stage or not before or min(before.values()) <= 0:
            return self.finding(point, Severity.WARNING, facts)
        state.watched = JumpInWarmUp(point, facts, before)
        return self.finding(point, Severity.INFO, facts)

    def _look_at_loss(self, state: LearningRateJumpState, point: Point) -> Finding | None:
        """Keep the loss, and judge by it a jump that may be the next stage of a warm-up."""
        losses = state.losses.setdefault(point.place, deque(maxlen=self.compared_losses))
        jump = state.watched
        if jump is None:
            if point.finite and point.has_level:
                losses.append(point.value)
            return None
        after = jump.after.setdefault(point.place, [])
        after.append(point.value if point.finite else math.inf)
        level, now = jump.before.get(point.place), median(after[-self.compared_losses :])
        if level is not None and len(after) >= self.compared_losses and now >= self.worse * level:
            state.watched = None
            facts = replace(jump.facts, loss=now, loss_before=level, found_first=jump.point.step)
            return self.finding(point._replace(quantity="learning_rate"), Severity.WARNING, facts)
        if len(after) >= self.watched_losses:
            state.watched = None
            losses.extend(value for value in after if math.isfinite(value))
        return None
