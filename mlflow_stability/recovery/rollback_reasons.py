"""Detect trouble at the end of a step that is worth a rollback, and choose the state to restore. Pure.

Periodic rises of the loss, and those after a learning rate jump, are recognised here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import fmean, median

from mlflow_stability.kinds.loss.divergence import Divergence, DivergenceFacts, SizeFacts, SlowRiseFacts
from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJumpFacts
from mlflow_stability.recovery.restored_losses import midpoint
from mlflow_stability.recovery.rollback_state import (
    ABSURD_RISE,
    GoodState,
    RateJump,
    RollbackHistory,
    Situation,
    SuspectedRise,
    Trouble,
    levels_of,
    rise_of,
)
from mlflow_stability.vocabulary.facts import LossRiseFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

REMEMBERED_ONSETS = 3  # rises of the loss whose distances are compared
SAME_DISTANCE = 0.05  # distances are equal within this share, or within the lag between onset and finding
SHORTEST_PERIOD = 100  # rises that return sooner are the same trouble: the restored state did not hold
JUMP_FACTOR = 10.0  # ratio of a learning rate to its highest value before that makes it suspect
JUMP_STEPS = 200  # number of steps after a learning rate jump in which a rise of the loss belongs to it
LASTING_STEPS = 64
"""Number of steps that a rise after a learning rate jump has to last if it is only a warning, and for which a loss that
falls again is left alone."""
GOING_ON = 0.25  # share of a slow rise that has come in its last 128 steps where it goes on
FALLING = 0.8  # share of a rise that may be left after `recovery_patience` steps where the loss is falling again
STILL_RISING = 1.25  # ratio of the last rises above the level to the first ones of a jump that still rises


@dataclass(frozen=True, slots=True)
class RiseAfterJumpFacts(LossRiseFacts):
    """A loss that rose after a jump of the learning rate and is still high."""

    jump: RateJump  # The jump

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``Learning rate jumped from 0.001 to 0.1 at step 400; the loss rose from 1.2 and is still 9, 64 steps …``"""
        return (
            f"Learning rate jumped from {self.jump.before:.4g} to {self.jump.after:.4g} at step {self.jump.step}; the "
            f"loss rose from {self.baseline:.4g} and is still {self.value:.4g}, {LASTING_STEPS} steps after it was "
            "found to be high."
        )


def trouble_at(policy: RollbackPolicy, past: RollbackHistory, now: Situation) -> Trouble | None:
    if not now.weights_finite and not now.broken_step_taken:
        onset = now.step - now.skips_in_a_row
        return Trouble(onset, f"Non-finite weights after step {now.step}.", urgent=True, nonfinite=True)
    if now.broken_step_taken:
        reason = f"Step {now.step} was taken with non-finite loss or gradients."
        return Trouble(now.step, reason, urgent=True, one_step=True, nonfinite=not now.weights_finite)
    if now.skips_in_a_row and now.skips_in_a_row % policy.rollback_after_skips == 0:
        onset = now.step - now.skips_in_a_row + 1
        return Trouble(
            onset, f"{now.skips_in_a_row} consecutive steps skipped since step {onset}.", urgent=True, skipped=True
        )
    reasons = [event for event in now.events if _is_reason(policy, past, event)]
    if reasons:
        onset = min(_onset_of(event, policy) for event in reasons)
        return Trouble(onset, reasons[0].message, event=reasons[0])
    if past.limit is not None and past.losses and len(past.losses) == policy.recovery_patience:
        mean = fmean(past.losses)
        if mean > past.limit:
            reason = f"Diverged again after the rollback: mean loss of {len(past.losses)} steps is {mean:.4g}."
            again = past.rollbacks[-1].again
            return Trouble(past.rollbacks[-1].at + 1, reason, may_repeat=not again, did_not_hold=True)
    if past.waiting is not None:
        return past.waiting
    return _lasting_rise(past, now)


def _is_reason(policy: RollbackPolicy, past: RollbackHistory, event: Finding) -> bool:
    if event.kind not in policy.rollback_on or event.severity < policy.rollback_at:
        return False
    if isinstance(event.facts, SlowRiseFacts) and not goes_on(event.facts):
        return False
    if not past.ignores_level or rise_of(event) >= ABSURD_RISE:
        return True
    return not isinstance(event.facts, LossRiseFacts | SizeFacts)


def goes_on(rise: SlowRiseFacts) -> bool:
    """Whether a slow rise was still under way when it was found.

    One that was over long before is a level that the training has come to since, as after a change of the data: earlier
    weights would come to it again.
    """
    return rise.late_share is None or rise.late_share >= GOING_ON


def _onset_of(event: Finding, policy: RollbackPolicy) -> int:
    facts = event.facts
    onset = facts.onset if isinstance(facts, DivergenceFacts | StartFacts) else None
    return event.step - policy.onset_lag if onset is None else onset


def with_findings(policy: RollbackPolicy, past: RollbackHistory, now: Situation) -> RollbackHistory:
    """Record findings of this step that may matter later."""
    for event in now.events:
        facts = event.facts
        if isinstance(facts, LearningRateJumpFacts) and facts.found_first is None:
            jump_now = RateJump(event.step, facts.highest_before, facts.learning_rate)
            past = replace(past, jump=jump_now, suspected=None)
    jump = past.jump
    if jump is None or past.ignores_level or not jump.after >= JUMP_FACTOR * jump.before:
        return past
    for event in now.events:
        loss, level = levels_of(event)
        fits = event.kind in policy.rollback_on and Severity.WARNING <= event.severity < policy.rollback_at
        soon = 0 <= event.step - jump.step <= JUMP_STEPS and past.suspected is None
        if fits and soon and loss > level:
            past = replace(past, suspected=SuspectedRise(jump, event.step, level, loss, event.place))
    return past


def _lasting_rise(past: RollbackHistory, now: Situation) -> Trouble | None:
    """Return a rise after a learning rate jump that has lasted."""
    rise = past.suspected
    if rise is None or not _is_due(rise, now) or fmean(now.recent) < midpoint(rise.level, rise.loss):
        return None
    facts = RiseAfterJumpFacts(fmean(now.recent), rise.level, rise.jump)
    event = Finding.at(facts, now.step, Severity.WARNING, kind=Divergence.kind, place=rise.place)
    return Trouble(rise.jump.step, event.message, event=event)


def _is_due(rise: SuspectedRise, now: Situation) -> bool:
    return now.step >= rise.since + LASTING_STEPS and now.place == rise.place and bool(now.recent)


def is_worth_waiting(past: RollbackHistory, now: Situation, trouble: Trouble) -> bool:
    """Whether a loss that jumped may be on its way back by itself, as after a change of the data that the model learns.

    It is falling again, or has not risen much further and is too new to tell. Not after a jump of the learning rate,
    which stays; nor for longer than `LASTING_STEPS`.
    """
    finding = trouble.event
    if finding is None or not isinstance(finding.facts, DivergenceFacts):
        return False
    follows_jump = past.jump is not None and 0 <= trouble.first_seen - past.jump.step <= JUMP_STEPS
    if follows_jump or now.step > finding.step + LASTING_STEPS:
        return False
    if trouble is past.waiting and now.place != finding.place:
        return True  # a loss of another part says nothing of this one
    since = now.step - trouble.first_seen + 1 - len(now.recent)
    earlier = now.earlier[-since:] if since > 0 else ()
    if not (earlier and now.recent):
        return False
    level = finding.facts.baseline
    share = FALLING if since >= len(now.recent) else STILL_RISING
    return fmean(now.recent) - level <= share * (fmean(earlier) - level)


def is_back(now: Situation, trouble: Trouble) -> bool:
    """Whether a loss that rose is nearer to its level than to its rise, or no higher than in an older state."""
    if trouble.event is None or now.place != trouble.event.place or not now.recent:
        return False
    loss, (risen, level) = fmean(now.recent), levels_of(trouble.event)
    older = [median(state.around) for state in now.good if state.around and state.step < trouble.onset]
    return loss < midpoint(level, risen) or (bool(older) and loss <= min(older))


def without_old_rise(past: RollbackHistory, now: Situation) -> RollbackHistory:
    """Drop a suspicion that was decided at this step, or never can be."""
    rise = past.suspected
    if rise is not None and (_is_due(rise, now) or now.step > rise.since + 2 * LASTING_STEPS):
        return replace(past, suspected=None)
    return past


def period_of(policy: RollbackPolicy, past: RollbackHistory, trouble: Trouble) -> int | None:
    """Return the distance at which rises return although two rollbacks answered them, or None."""
    onsets = (*past.onsets, trouble.first_seen)[-REMEMBERED_ONSETS:]
    if len(onsets) < REMEMBERED_ONSETS or len([rollback for rollback in past.rollbacks if rollback.of_level]) < 2:
        return None
    first, second = onsets[1] - onsets[0], onsets[2] - onsets[1]
    slack = max(policy.onset_lag, SAME_DISTANCE * first)
    if min(first, second) < SHORTEST_PERIOD or abs(second - first) > slack:
        return None
    return past.period or round((first + second) / 2)


MAX_DOUBLINGS = 16  # rewinding doubles no further: any state is older by then


def choose_target(
    policy: RollbackPolicy, past: RollbackHistory, now: Situation, trouble: Trouble, *, weights_lost: bool = False
) -> GoodState | None:
    """Return the state to restore for this trouble; None where none will do.

    A state that an earlier rollback has left behind is never chosen. In this order:

    1. `weights_lost`, weights are not finite and rollbacks have ended: the newest state from before the onset, or any.
    2. The number of rollbacks is used up: the initial weights, where they were not tried.
    3. The restored state diverged again, and only once so far: the same state, as the cause may have lasted longer.
    4. The newest state, or the best, that is `rewind_steps` older than the onset. For trouble that repeats, it is from
       after the last rollback or from before the state restored then.
    5. The oldest state from before the onset.

    Where another optimizer made its first step after the state of 4., that step may be the cause: the state from before
    it comes first, with the lower learning rate of trouble at the start of a training.
    """
    last = past.rollbacks[-1] if past.rollbacks else None
    in_effect = [rollback for rollback in past.rollbacks if not rollback.undone]
    kept = [state for state in now.good if not any(rollback.to < state.step <= rollback.at for rollback in in_effect)]
    before = [state for state in kept if state.step < trouble.onset]
    if weights_lost:
        return max(before or kept or now.good, key=attrgetter("step"), default=None)
    if is_spent(policy, past, now.step):
        if len(past.rollbacks) >= policy.max_rollbacks_in_all:
            return None
        tried = {rollback.to for rollback in past.rollbacks}
        untried = (state for state in now.good if state.initial and state.step < trouble.onset)
        return next((state for state in untried if state.step not in tried), None)
    if may_restore_again(past, now, trouble):
        return next(state for state in now.good if state.step == past.rollbacks[-1].to)
    if trouble.skipped:  # no step was taken: the weights are still the initial ones
        before = [state for state in before if not state.initial or state.step < trouble.onset - 1]
    latest_allowed = trouble.onset - max(rewind_steps(policy, past, trouble), 1)
    taken_over = (state for state in kept if state.initial and latest_allowed <= state.step < trouble.first_seen)
    if not trouble.skipped and (initial := next(taken_over, None)) is not None:
        return initial
    enough = [state for state in before if state.step <= latest_allowed]
    if trouble.is_slow:  # some of them are from within the rise
        enough = [state for state in enough if not why_no_better(trouble, state)] or enough
    if repetitions(policy, past, trouble) and last is not None:
        # What was healthy again since then will do; the state that led here once, and its successors, will not.
        since = [state for state in enough if state.step > last.at]
        enough = since or [state for state in enough if state.step < last.to]
    if not enough:
        return min(before, key=attrgetter("step"), default=None)
    return preferred_state(policy, enough)


def preferred_state(policy: RollbackPolicy, states: Sequence[GoodState]) -> GoodState:
    """Return the newest of these states, or the one with the lowest loss, as the policy says."""
    if policy.rollback_target == "best":
        return min(states, key=lambda state: (math.inf if math.isnan(state.loss) else state.loss, -state.step))
    return max(states, key=attrgetter("step"))


def next_older_target(past: RollbackHistory, good: Sequence[GoodState], target: int) -> int:
    """Return the step of the next older state where the one of step `target` does not fit the training; -1: none.

    It is not the one from before the first step, which is for training that fails from there on. `past` ends with the
    rollback whose state does not fit.
    """
    in_effect = [rollback for rollback in past.rollbacks[:-1] if not rollback.undone]
    steps = (state.step for state in good if not state.initial and state.step < target)
    return max(
        (step for step in steps if not any(rollback.to < step <= rollback.at for rollback in in_effect)), default=-1
    )


def may_restore_again(past: RollbackHistory, now: Situation, trouble: Trouble) -> bool:
    proven = {state.step for state in now.good if not state.initial}
    return trouble.may_repeat and past.rollbacks[-1].to in proven


def rewind_steps(policy: RollbackPolicy, past: RollbackHistory, trouble: Trouble) -> int:
    """Return how many steps before the onset a state must be; doubled at each repetition."""
    level = repetitions(policy, past, trouble)
    return 0 if trouble.one_step and not level else policy.rewind * 2 ** min(level, MAX_DOUBLINGS)


def repetitions(policy: RollbackPolicy, past: RollbackHistory, trouble: Trouble) -> int:
    """Return how often the same trouble was answered before."""
    last = past.rollbacks[-1] if past.rollbacks else None
    if last is None or last.had_no_effect or trouble.onset > last.at + policy.same_trouble_within:
        return 0
    return last.level + 1


def is_spent(policy: RollbackPolicy, past: RollbackHistory, step: int) -> bool:
    if len(past.rollbacks) >= policy.max_rollbacks_in_all:
        return True
    recent, until = 0, step
    for rollback in reversed(past.rollbacks):
        if until - rollback.at > policy.forgiven_after:
            break
        recent, until = recent + (not rollback.had_no_effect), rollback.at
    return recent >= policy.max_rollbacks


def why_no_better(trouble: Trouble, state: GoodState) -> str:
    """Explain why a state does not lower the loss; empty where it may.

    A loss that can be negative has no level: a change of its scale, as of the rewards in reinforcement learning, looks
    like a rise. Where a loss rose slowly, states may be from within the rise.
    """
    risen, level = levels_of(trouble.event)
    if not state.around or not (min(risen, level) < 0 or trouble.is_slow):
        return ""
    gave = median(state.around)
    return "" if gave < risen else f"The loss is not above that of step {state.step}, {gave:.4g}."
