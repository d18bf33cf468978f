"""Says when the learning rate leaps to where it has never been."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Instability, Symptom
from mlflow_stability.detectors.engine.learning_rate_restart import EXCUSES, LEAST_RISE, NOT_BEYOND
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class Rate:
    """What has been seen of one parameter group."""

    last: float
    highest: float
    fallen: bool = False
    """Whether it has ever gone down, or not changed for long, which ends its warm-up."""
    since: int = 0
    """The step from which on it has not changed."""
    leap: tuple[Point, float, float] | None = None
    """A leap that may be the first step of a linear warm-up, with the rate before it and the highest before it."""
    seen: int = 0
    """The last step."""
    jumped_at: int | None = None
    """The step of the last jump, ..."""
    before_jump: float = 0.0
    """... and the highest rate before it."""
    is_barred: bool = False
    """Whether the present rate was rolled back from, and does not count until it has come down."""

    def after_rollback(self) -> Rate:
        """What is still known of it after a rollback."""
        if self.jumped_at is None or self.seen - self.jumped_at > EXCUSES:
            return Rate(self.last, self.highest, self.fallen, self.since, seen=self.seen)
        return Rate(self.last, self.before_jump, True, self.since, seen=self.seen, is_barred=True)


@dataclass(slots=True)
class LearningRateJumpState:
    """What has been seen so far, by parameter group."""

    groups: dict[str, Rate] = field(default_factory=dict)
    said_at: int = -1
    """Groups that leap together are one finding."""


@dataclass(frozen=True, slots=True)
class LearningRateJump(Detector):
    """The learning rate jumped above its highest value so far.

    What it sees: a learning rate that grows by a factor of {smallest_rise} in one step, to {beyond_highest} times its
    highest value so far or more. Before it has decreased for the first time, or been constant for {constant} steps, it
    may still be warming up. Then only a factor of {smallest_rise_in_warm_up} counts, unless the next step rises by
    {same_pace:percent} of that or more, as in a linear warm-up from near zero. Restarts (cosine with warm restarts,
    cyclic schedules) return to the highest rate and do not count; nor does a decrease. Groups that jump in the same
    step are one finding.

    Why it matters: the schedule, or a resumed run that lost its schedule, uses an untested rate. Later changes
    in the loss have their cause here.

    What to try: check the schedule, above all at its end and after a resume; warm up to the new rate over some hundred
    steps.

    When it is wrong: a warm-up whose first stage is more than {smallest_rise_in_warm_up} times lower than the second,
    or lasts {constant} steps; a rate that was set by hand on purpose. No finding in 141 healthy trainings of 64 kinds.

    Reference: Goyal et al. (arXiv:1706.02677, 2.2); SGDR (arXiv:1608.03983)
    """

    smallest_rise: float = LEAST_RISE
    """Minimum factor in one step once the rate has decreased before."""
    smallest_rise_in_warm_up: float = 5.0
    """Minimum factor in one step before that."""
    constant: int = 1000
    """Number of steps without a change that end the warm-up."""
    same_pace: float = 0.5
    """Minimum share of a jump by which the next step must rise for both to be one linear warm-up."""
    beyond_highest: float = NOT_BEYOND
    """Minimum ratio to the highest rate so far."""

    kind = "learning_rate_jump"
    instability = Instability.HARMFUL
    noun = "a learning rate jump"
    plural = "learning rate jumps"
    symptom = Symptom.LEARNING_RATE
    order = 120
    quantities = ("learning_rate",)
    across_places = True
    remedies = (
        Remedy(Action.CHECK_SCHEDULE_AT_RESUME),
        Remedy(Action.WARM_UP_TO_NEW_RATE),
    )
    state_type = LearningRateJumpState

    def after_rollback(self, state: LearningRateJumpState) -> LearningRateJumpState:
        """Keep the learning rates so far, but for one that had jumped just before: it is still untested."""
        return LearningRateJumpState({place: group.after_rollback() for place, group in state.groups.items()})

    def step(self, state: LearningRateJumpState, point: Point) -> tuple[LearningRateJumpState, Event | None]:
        """Look at the next learning rate."""
        rate = point.value
        if not point.finite:
            return state, None
        group = state.groups.get(point.place)
        if group is None:
            state.groups[point.place] = Rate(rate, rate, since=point.step, seen=point.step)
            return state, None
        last, highest, leap = group.last, group.highest, group.leap
        group.last, group.leap, group.seen = rate, None, point.step
        group.is_barred = group.is_barred and rate > highest * self.beyond_highest
        if rate != last:
            group.fallen = group.fallen or point.step - group.since >= self.constant
            group.since = point.step
        if leap is not None and rate - last < self.same_pace * (leap[0].value - leap[1]):
            group.fallen = True
            return state, self._jump(state, group, *leap)
        if rate <= last:
            group.fallen = group.fallen or rate < last
            return state, None
        if group.is_barred:
            return state, None
        group.highest = max(rate, highest)
        if last > 0 and rate >= highest * self.beyond_highest:
            if group.fallen and rate >= last * self.smallest_rise:
                return state, self._jump(state, group, point, last, highest)
            if not group.fallen and rate >= last * self.smallest_rise_in_warm_up:
                group.leap = (point, last, highest)
        return state, None

    def _jump(
        self, state: LearningRateJumpState, group: Rate, point: Point, last: float, highest: float
    ) -> Event | None:
        group.jumped_at, group.before_jump = point.step, highest
        if state.said_at == point.step:
            return None
        state.said_at = point.step
        return finding(
            self,
            point,
            Severity.WARNING,
            f"learning rate jumped from {last:.3g} to {point.value:.3g} at step {point.step}; highest before: "
            f"{highest:.3g}.",
            {"learning_rate": point.value, "before": last, "highest_before": highest},
        )
