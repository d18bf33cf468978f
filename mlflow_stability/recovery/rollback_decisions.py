"""Decide after a step: nothing, a rollback, or give up. Pure: no clock, no tensors.

Guarantees: the number of rollbacks is bounded; a loss that falls back by itself is left alone; trouble that repeats is
answered by an older state if there is one, except one retry of a state that diverged again. After giving up, only
non-finite weights are replaced. A rollback whose weights give no lower loss than before it is reverted and not counted;
after the second one a higher loss triggers none any more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, median

from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.recovery.restored_losses import FIRST_LOSSES, gives_more, gives_no_less, highest_mean, midpoint
from mlflow_stability.recovery.rollback_reasons import (
    MAX_DOUBLINGS,
    REMEMBERED_ONSETS,
    choose_target,
    is_back,
    is_spent,
    is_worth_waiting,
    may_restore_again,
    period_of,
    repetitions,
    trouble_at,
    why_no_better,
    with_findings,
    without_old_rise,
)
from mlflow_stability.recovery.rollback_state import (
    Decision,
    GoodState,
    PastRollback,
    RollbackHistory,
    Situation,
    Trouble,
    levels_of,
)
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.text.phrases import counted

WATCHED_STEPS = 100
"""Steps after a rollback in which the restored state is watched: the detectors are reset there, and would take a high
loss for the baseline."""
MAX_REVERTED = 2  # number of reverted rollbacks after which a higher loss triggers no further one


def decide(policy: RollbackPolicy, past: RollbackHistory, situation: Situation) -> tuple[RollbackHistory, Decision]:
    if not policy.rolls_back or past.ended:
        return past, Decision()
    if policy.raise_after_skips is not None and situation.skips_in_a_row >= policy.raise_after_skips:
        onset = situation.step - situation.skips_in_a_row + 1
        skipped = f"{situation.skips_in_a_row} consecutive steps skipped since step {onset}"
        reason = f"{skipped}: the training makes no progress."
        return replace(past, gave_up=True, ended=True), Decision(
            "give_up", reason, onset, final=True, nothing_left=True
        )
    if past.gave_up:
        return _replace_broken_weights(policy, past, situation)
    past = with_findings(policy, _with_loss(policy, past, situation), situation)
    if past.on_trial and not situation.has_level and not past.rollbacks[-1].absurd:
        reason = "The loss of this training has no level: that it rose does not mean that the weights are worse."
        return _discount_rollback(past, situation, Decision("undo", reason, past.rollbacks[-1].first_seen), wanted=True)
    if past.on_trial and len(past.losses) == policy.recovery_patience:
        past, decision = _judge_rollback(past, situation)
        if decision.action != "nothing":
            return past, decision
    trouble = trouble_at(policy, past, situation)
    past = without_old_rise(past, situation)
    if trouble is None:
        return past, Decision()
    last = past.rollbacks[-1] if past.rollbacks else None
    settles = last is not None and not trouble.urgent and situation.step < last.at + policy.recovery_patience
    if settles or is_worth_waiting(past, situation, trouble):
        return replace(past, waiting=past.waiting or trouble), Decision()
    waited, past = past.waiting, replace(past, waiting=None)
    if trouble is waited and is_back(situation, trouble):
        return past, Decision()
    return _answer(policy, past, situation, trouble)


def _answer(
    policy: RollbackPolicy, past: RollbackHistory, situation: Situation, trouble: Trouble
) -> tuple[RollbackHistory, Decision]:
    """Return the rollback for this trouble, or the reason against one."""
    last = past.rollbacks[-1] if past.rollbacks else None
    if trouble.of_level:
        period, known_period = period_of(policy, past, trouble), past.period
        onsets = (*past.onsets, trouble.first_seen)[-REMEMBERED_ONSETS:]
        past = replace(past, onsets=onsets, period=period)
        if period is not None and known_period is not None:
            return past, Decision()
        if period is not None:
            reason = (
                f"{trouble.reason} The loss rises about every {period} steps ({', '.join(map(str, onsets))}), and "
                "rollbacks did not prevent it. No further rollbacks for a rise at this distance."
            )
            return past, Decision("give_up", reason, trouble.onset)
    if trouble.skipped and last is not None and trouble.onset <= last.at + 1:
        return _give_up(policy, past, situation, trouble, hopeless=True)
    target = choose_target(policy, past, situation, trouble)
    if target is None:
        if is_spent(policy, past, situation.step):
            return _give_up(policy, past, situation, trouble, hopeless=False)
        if trouble.nonfinite:
            return _replace_broken_weights(policy, past, situation)
        unanswered = past.unanswered + 1
        final = unanswered > policy.max_rollbacks
        reason = f"{trouble.reason} No good state from before step {trouble.onset} is available."
        past = replace(past, unanswered=unanswered, gave_up=final)
        return past, Decision("give_up", reason, trouble.onset, final=final)
    if why := why_no_better(trouble, target):
        return past, Decision("give_up", f"{trouble.reason} {why}", trouble.onset, is_no_better=True)
    again = may_restore_again(past, situation, trouble)
    level = past.rollbacks[-1].level if again else repetitions(policy, past, trouble)
    return _rollback(policy, past, situation, trouble, target, level, again)


def _rollback(
    policy: RollbackPolicy,
    past: RollbackHistory,
    situation: Situation,
    trouble: Trouble,
    target: GoodState,
    level: int,
    again: bool = False,
) -> tuple[RollbackHistory, Decision]:
    of_level = trouble.of_level or trouble.did_not_hold
    returned = PastRollback(
        situation.step,
        target.step,
        level,
        again,
        trouble.skipped,
        trouble.onset,
        trouble.first_seen,
        of_level,
        trouble.is_absurd,
    )
    # The same trouble again: what was known of the level still holds.
    limit = _limit(policy, trouble.event, target) or (past.limit if level or again else None)
    share = _lasting_share(policy, past, trouble, level, proven=not target.initial)
    given = () if target.initial else target.around
    past = replace(
        past,
        rollbacks=(*past.rollbacks, returned),
        unanswered=0,
        limit=limit,
        losses=(),
        first=(),
        on_trial=limit is not None and bool(given) and of_level and policy.recovery_patience > 0,
        share=share,
        trained_losses=given,
        losses_before=situation.recent,
        suspected=None,
    )
    if trouble.event is not None:
        past = replace(past, place=trouble.event.place)
    return past, Decision(
        "rollback",
        trouble.reason,
        trouble.onset,
        target.step,
        policy.easing_factor ** (level + 1),
        policy.easing_steps * 2 ** min(level, MAX_DOUBLINGS),
        share,
        finding=trouble.event,
    )


def _give_up(
    policy: RollbackPolicy, past: RollbackHistory, situation: Situation, trouble: Trouble, hopeless: bool
) -> tuple[RollbackHistory, Decision]:
    """Stop rolling back: it did not help."""
    last = past.rollbacks[-1] if past.rollbacks else None
    why = f"{counted(len(past.rollbacks), 'rollback')} did not help; the cause is still there."
    if past.share < 1:
        why = f"Rolling back to the initial weights did not help, even at {past.share:g} times the learning rate."
    if hopeless:
        why = "The restored state failed at its first step: the cause is not in the weights."
    left = last.at if hopeless and last is not None and last.skipped else -1
    past = replace(past, gave_up=True, on_trial=False, limit=None)
    if trouble.nonfinite:
        after, decision = _replace_broken_weights(policy, past, situation)
        if decision.action != "nothing":
            return after, decision
    return past, Decision("give_up", f"{trouble.reason} {why}", trouble.onset, target=left, final=True)


def _replace_broken_weights(
    policy: RollbackPolicy, past: RollbackHistory, now: Situation
) -> tuple[RollbackHistory, Decision]:
    """Replace non-finite weights by any state; without one, nothing is left to lose."""
    if now.weights_finite:
        return past, Decision()
    trouble = trouble_at(policy, past, now)
    assert trouble is not None
    target = choose_target(policy, past, now, trouble, weights_lost=True)
    if target is not None and len(past.rollbacks) < policy.max_rollbacks_in_all:
        return _rollback(policy, past, now, trouble, target, repetitions(policy, past, trouble))
    why = "No finite state is left to restore."
    if target is not None:
        why = f"{counted(len(past.rollbacks), 'rollback')} did not help."
    past = replace(past, gave_up=True, ended=True)
    return past, Decision("give_up", f"{trouble.reason} {why}", trouble.onset, final=True, nothing_left=True)


def _with_loss(policy: RollbackPolicy, past: RollbackHistory, now: Situation) -> RollbackHistory:
    """Record the loss of this step while the restored state is watched."""
    if not now.has_level:
        past = replace(past, suspected=None, limit=past.limit if past.on_trial else None)
    if past.limit is None or now.step <= past.rollbacks[-1].at:  # read late: a loss of the weights that were left
        return past
    if now.step > past.rollbacks[-1].at + WATCHED_STEPS:
        return replace(past, limit=None, losses=())
    if not math.isfinite(now.loss) or not policy.recovery_patience or now.place != past.place:
        return past
    first = (*past.first, now.loss)[:FIRST_LOSSES]
    return replace(past, losses=(*past.losses, now.loss)[-policy.recovery_patience :], first=first)


def mark_carried_out(past: RollbackHistory, step: int) -> RollbackHistory:
    """Record that the last rollback was carried out after this step: with several ranks one step after the decision."""
    if not past.rollbacks:
        return past
    return replace(past, rollbacks=(*past.rollbacks[:-1], replace(past.rollbacks[-1], at=step)), losses=(), first=())


def _judge_rollback(past: RollbackHistory, now: Situation) -> tuple[RollbackHistory, Decision]:
    """Compare the first losses after a rollback with those before it, and revert it where they are no lower.

    Clearly higher losses than the restored state gave before mean that the data or the loss function changed. Then the
    weights with the lower loss have learnt more of the new data, or were damaged less.
    """
    last, enough = past.rollbacks[-1], len(past.losses_before) > len(past.losses) // 2
    loss, level = past.first[0] if past.first else math.nan, median(past.trained_losses)
    limit, mean = past.limit, fmean(past.losses)
    if limit is not None and mean > limit and gives_more(past.trained_losses, past.first, past.losses, limit):
        wanted = enough and fmean(past.losses_before) <= mean
        reason = (
            f"The weights of step {last.to} give a loss of {loss:.4g} where they gave {level:.4g}: "
            f"the data or the loss function changed at about step {last.first_seen}."
        )
        decision = Decision("data_changed", reason, last.first_seen, loss=loss, level=level)
    elif not last.absurd and gives_no_less(past.trained_losses, past.losses_before, past.first, past.losses):
        wanted = enough
        reason = (
            f"The weights of step {last.to} give a loss of {mean:.4g}, those of step {last.at} gave "
            f"{fmean(past.losses_before):.4g}: older weights do not lower the loss."
        )
        decision = Decision("undo", reason, last.first_seen, loss=loss, level=level)
    else:
        return replace(past, on_trial=False), Decision()
    return _discount_rollback(past, now, decision, wanted)


def _discount_rollback(
    past: RollbackHistory, now: Situation, decision: Decision, wanted: bool
) -> tuple[RollbackHistory, Decision]:
    """Do not count the last rollback; `wanted`: restore the weights from before it, if they are still there."""
    last = past.rollbacks[-1]
    wanted = wanted and now.set_aside == last.at
    past = replace(past, on_trial=False)
    returns = (*past.rollbacks[:-1], replace(last, had_no_effect=True, undone=wanted))
    ignores = sum(rollback.had_no_effect for rollback in returns) >= MAX_REVERTED
    past = replace(past, rollbacks=returns, limit=None, losses=(), first=(), trained_losses=(), waiting=None)
    decision = replace(decision, ignores_level=ignores and not past.ignores_level)
    past = replace(past, ignores_level=ignores, suspected=None)
    return past, replace(decision, target=last.at, undoes=last.at - last.to) if wanted else decision


def _limit(policy: RollbackPolicy, event: Finding | None, target: GoodState) -> float | None:
    """Return the midpoint between the restored state's losses and the loss before the rollback.

    The restored state counts with its highest mean: early states come from a phase in which the loss was high.
    """
    risen, level = levels_of(event)
    levels = (level, target.loss, highest_mean(target.around, max(1, policy.recovery_patience)))
    gave = max((value for value in levels if not math.isnan(value)), default=math.nan)
    limit = gave * midpoint(level, risen) / level if min(gave, level, risen) > 0 else gave + (risen - level) / 2
    return limit if math.isfinite(limit) and risen > level else None


def _lasting_share(policy: RollbackPolicy, past: RollbackHistory, trouble: Trouble, level: int, proven: bool) -> float:
    """Return the lasting learning rate factor: smaller with each rollback to the initial weights, and after one with
    each repetition.
    """
    if (proven and past.share >= 1) or not (level or (not proven and not trouble.one_step)):
        return past.share
    facts = trouble.event.facts if trouble.event is not None else None
    change = facts.update_ratio if isinstance(facts, StartFacts) else 1.0
    # A step that changed the weights by many times their norm was too large by about as much.
    return past.share * policy.initial_factor * max(policy.initial_factor**2, 1.0 / max(1.0, change))
