"""Choose the state that a rollback restores. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from mlflow_stability.recovery.rollback_state import GoodState, RollbackHistory, Situation
from mlflow_stability.recovery.rollback_triggers import Trouble, levels_of
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

MAX_DOUBLINGS = 16
"""Rewinding doubles no further: any state is older by then."""


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
    """
    last = past.rollbacks[-1] if past.rollbacks else None
    in_effect = [rollback for rollback in past.rollbacks if not rollback.undone]
    kept = [state for state in now.good if not any(rollback.to < state.step <= rollback.at for rollback in in_effect)]
    before = [state for state in kept if state.step < trouble.onset]
    if weights_lost:
        return max(before or kept or now.good, key=_step, default=None)
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
    enough = [state for state in before if state.step <= latest_allowed]
    if trouble.is_slow:  # some of them are from within the rise
        enough = [state for state in enough if not why_no_better(trouble, state)] or enough
    if repetitions(policy, past, trouble) and last is not None:
        # What was healthy again since then will do; the state that led here once, and its successors, will not.
        since = [state for state in enough if state.step > last.at]
        enough = since or [state for state in enough if state.step < last.to]
    if not enough:
        return min(before, key=_step, default=None)
    return preferred_state(policy, enough)


def preferred_state(policy: RollbackPolicy, states: Sequence[GoodState]) -> GoodState:
    """Return the newest of these states, or the one with the lowest loss, as the policy says."""
    if policy.rollback_target == "best":
        return min(states, key=lambda state: (math.inf if math.isnan(state.loss) else state.loss, -state.step))
    return max(states, key=_step)


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
    """Whether the policy allows no further rollback."""
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


def _step(state: GoodState) -> int:
    return state.step
