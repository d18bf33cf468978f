"""Decides what to do about trouble: nothing, go back, or give up.

In: the policy, what was done so far, and the situation at a step. Out: a decision, and what was done so far with it
taken into account. Pure: no clock, no tensors. Guarantees: the number of times that it decides to go back is bounded;
trouble that repeats goes back further wherever an older state exists, but that a state which did not hold is tried
once more; weights that were replaced without effect are named when it gives up; after that it decides nothing more.
Where restored weights give a higher loss than they gave, from the first step on, the data or the loss function have
changed: that is said, the better one of both states is trained on, and no rollback is counted for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from mlflow_stability.recovery.restored_losses import FIRST, gives_more
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.result import Event

WATCHED = 100
"""For how many steps after going back it is watched whether the restored state holds: the detectors begin anew there,
and would take what they see for the usual."""
DOUBLINGS = 16
"""Rewinding is doubled no further than this: any state is older then."""


@dataclass(frozen=True, slots=True)
class GoodState:
    """A state that can be gone back to."""

    step: int
    loss: float
    initial: bool = False
    """It is from before the first step, and has proved nothing."""
    around: tuple[float, ...] = ()
    """The losses that it gave when it was trained, as far as they are known."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known at the end of a step."""

    step: int
    events: tuple[Event, ...] = ()
    loss: float = math.nan
    skips_in_a_row: int = 0
    broken_step_taken: bool = False
    """A step with non-finite gradients or loss went into the weights."""
    weights_finite: bool = True
    good: tuple[GoodState, ...] = ()
    """The states that can be gone back to."""
    place: str = ""
    """Of which part of the training the loss is, such as one half of a GAN."""
    recent: tuple[float, ...] = ()
    """The losses of the last steps, this one among them."""
    set_aside: int | None = None
    """The step of the state from before the last rollback, where it is still there."""


@dataclass(frozen=True, slots=True)
class PastRollback:
    """One time that we went back."""

    at: int
    """The step after which."""
    to: int
    """The step of the state."""
    level: int
    """How many times the same trouble had been answered before."""
    again: bool = False
    """To the same state once more: the cause may have lasted longer than the first time."""
    skipped: bool = False
    """All steps of the trouble were skipped: the weights that were left were not to blame, as far as was known."""
    onset: int = 0
    """Where the trouble began at the earliest."""
    first_seen: int = 0
    """The first step at which it was seen."""
    cleared: bool = False
    """The weights were not to blame: the data or the loss function had changed. It counts as no rollback."""
    undone: bool = False
    """The weights that were left are trained on."""


@dataclass(frozen=True, slots=True)
class RollbackHistory:
    """What was done so far."""

    rollbacks: tuple[PastRollback, ...] = ()
    unanswered: int = 0
    """How many times in a row there was nothing to go back to."""
    waiting: int | None = None
    """The onset of a finding that waits until the restored state has settled."""
    why_waiting: str = ""
    limit: float | None = None
    """A mean loss above this, soon after going back, says that the restored state did not hold."""
    losses: tuple[float, ...] = ()
    """The last losses since then, ..."""
    first: tuple[float, ...] = ()
    """... and the first ones."""
    given: tuple[float, ...] = ()
    """What the restored state gave when it was trained; empty where that is no measure of what it should give."""
    left: tuple[float, ...] = ()
    """The losses right before going back."""
    place: str = ""
    """Of which part of the training all these losses are."""
    share: float = 1.0
    """Of the learning rate, for the rest of the training: below 1 after going back to the initial weights."""
    gave_up: bool = False
    """Whether we do not go back any more; broken steps are skipped on, for weights that are finite are worth more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now."""

    action: Literal["nothing", "rollback", "give_up", "data_changed"] = "nothing"
    reason: str = ""
    """A sentence for the event."""
    onset: int = 0
    """The step at which the trouble began."""
    rewind: int = 0
    """How many steps before that the state should be."""
    target: int = -1
    """The step of the state to restore; of giving up, and of changed data: that of weights that were replaced and are
    wanted back, if any."""
    easing_factor: float = 1.0
    easing_steps: int = 0
    lasting_share: float = 1.0
    """The share of the learning rate that stays for the rest of the training."""
    final: bool = False
    """Of giving up: whether there is no going back from now on; else only this trouble is not answered."""
    had_no_effect: bool = False
    """Of giving up: whether going back was tried and did not help, or there was nothing to be tried."""
    is_no_better: bool = False
    """Of giving up: whether the loss of the state, which can be negative, is no lower than the present one."""
    undoes: int = 0
    """How many steps are won back, because an earlier rollback is undone."""
    loss: float = math.nan
    """Of changed data: the first loss that the restored weights gave on it, ..."""
    level: float = math.nan
    """... and what they gave before."""


@dataclass(frozen=True, slots=True)
class _Trouble:
    onset: int
    """Where it began at the earliest: the state that is gone back to is older."""
    reason: str
    urgent: bool = False
    """It does not wait: no state can settle with it."""
    event: Event | None = None
    skipped: bool = False
    """All its steps were skipped, so that the weights are still those from before it."""
    may_repeat: bool = False
    """Whether going back to the same state once more may do."""
    one_step: bool = False
    """One broken step that was taken: it says itself where it began, and does not speak against the learning rate."""
    did_not_hold: bool = False
    """The restored state gives high losses again."""


def decide(policy: RollbackPolicy, past: RollbackHistory, situation: Situation) -> tuple[RollbackHistory, Decision]:
    """Decide what to do after this step."""
    if past.gave_up or not policy.rollback:
        return past, Decision()
    past = _with_loss(policy, past, situation)
    trouble = _trouble(policy, past, situation)
    if trouble is None:
        return past, Decision()
    last = past.rollbacks[-1] if past.rollbacks else None
    if trouble.did_not_hold and gives_more(past.given, past.first, past.losses, past.limit or 0.0):
        return _data_changed(past, situation)
    if last is not None and not trouble.urgent and situation.step < last.at + policy.recovery_patience:
        if past.waiting is None:
            past = replace(past, waiting=trouble.onset, why_waiting=trouble.reason)
        return past, Decision()
    past = replace(past, waiting=None, why_waiting="")
    proven = {each.step for each in situation.good if not each.initial}
    again = trouble.may_repeat and last is not None and last.to in proven
    level = last.level if again and last is not None else _level(policy, past, trouble)
    rewind = policy.rewind * 2 ** min(level, DOUBLINGS) if not trouble.one_step or level else 0
    target = last.to if again and last is not None else _target(policy, past, situation.good, trouble, rewind)
    hopeless = trouble.skipped and last is not None and trouble.onset <= last.at + 1
    spent = _spent(policy, past, situation.step)
    if spent and not hopeless and (first := _last_resort(policy, past, situation, trouble)) is not None:
        target, spent = first, False
    if hopeless or spent:
        why = f"{len(past.rollbacks)} rollbacks did not help; the cause is still there."
        if past.share < 1:
            why = f"Rolling back to the initial weights did not help, even at {past.share:g} times the learning rate."
        if hopeless:
            why = "The restored state failed at its first step: the cause is not in the weights."
        reason = f"{trouble.reason} {why}"
        left = last.at if hopeless and last is not None and last.skipped else -1
        # Of rollbacks from which the data had changed it is not known that they do not help.
        in_vain = hopeless or last is None or not last.cleared
        given_up = Decision("give_up", reason, trouble.onset, target=left, final=True, had_no_effect=in_vain)
        return replace(past, gave_up=True), given_up
    if target is None:
        unanswered = past.unanswered + 1
        final = unanswered > policy.max_rollbacks
        reason = f"{trouble.reason} No good state from before step {trouble.onset} is available."
        past = replace(past, unanswered=unanswered, gave_up=final)
        return past, Decision("give_up", reason, trouble.onset, final=final, had_no_effect=trouble.skipped)
    state = next((each for each in situation.good if each.step == target), None)
    if state is not None and (why := _is_no_better(trouble.event, state)):
        return past, Decision("give_up", f"{trouble.reason} {why}", trouble.onset, is_no_better=True)
    returned = PastRollback(situation.step, target, level, again, trouble.skipped, trouble.onset, _first_seen(trouble))
    returns = (*past.rollbacks, returned)
    # The same trouble again: what was known of the level still holds.
    limit = _limit(trouble.event, situation, target) or (past.limit if level or again else None)
    share = _lasting_share(policy, past, trouble, level, target in proven)
    past = replace(past, rollbacks=returns, unanswered=0, limit=limit, losses=(), first=(), share=share)
    past = replace(past, given=state.around if state is not None and target in proven else (), left=situation.recent)
    if trouble.event is not None:
        past = replace(past, place=trouble.event.place)
    return past, Decision(
        "rollback",
        trouble.reason,
        trouble.onset,
        rewind,
        target,
        policy.easing_factor ** (level + 1),
        policy.easing_steps * 2 ** min(level, DOUBLINGS),
        share,
    )


def _trouble(policy: RollbackPolicy, past: RollbackHistory, now: Situation) -> _Trouble | None:
    """The worst that is wrong, if anything is."""
    if not now.weights_finite:
        onset = now.step - now.skips_in_a_row
        return _Trouble(onset, f"Non-finite weights after step {now.step}.", urgent=True)
    if now.broken_step_taken:
        reason = f"Step {now.step} was taken with non-finite loss or gradients."
        return _Trouble(now.step, reason, urgent=True, one_step=True)
    if now.skips_in_a_row and now.skips_in_a_row % policy.rollback_after_skips == 0:
        onset = now.step - now.skips_in_a_row + 1
        return _Trouble(
            onset, f"{now.skips_in_a_row} consecutive steps skipped since step {onset}.", urgent=True, skipped=True
        )
    found = [each for each in now.events if each.kind in policy.rollback_on and each.severity >= policy.rollback_at]
    if found:
        onsets = [each.evidence.get("onset", each.step - policy.onset_lag) for each in found]
        return _Trouble(int(min(onsets)), found[0].message, event=found[0])
    if past.limit is not None and len(past.losses) == policy.recovery_patience:
        mean = sum(past.losses) / len(past.losses)
        if mean > past.limit:
            reason = f"Diverged again after the rollback: mean loss of {len(past.losses)} steps is {mean:.4g}."
            again = past.rollbacks[-1].again
            return _Trouble(past.rollbacks[-1].at + 1, reason, may_repeat=not again, did_not_hold=True)
    if past.waiting is not None:
        return _Trouble(past.waiting, past.why_waiting)
    return None


def _with_loss(policy: RollbackPolicy, past: RollbackHistory, now: Situation) -> RollbackHistory:
    """What was done, with the loss of this step, while it is watched whether the restored state holds."""
    if past.limit is None or now.step <= past.rollbacks[-1].at:  # read late: a loss of the weights that were left
        return past
    if now.step > past.rollbacks[-1].at + WATCHED:
        return replace(past, limit=None, losses=())
    if not math.isfinite(now.loss) or not policy.recovery_patience or now.place != past.place:
        return past
    first = (*past.first, now.loss)[:FIRST]
    return replace(past, losses=(*past.losses, now.loss)[-policy.recovery_patience :], first=first)


def is_on_trial(policy: RollbackPolicy, past: RollbackHistory) -> bool:
    """Whether it is not known yet that the restored state holds, so that the one before may be wanted back."""
    return past.limit is not None and bool(past.given) and len(past.losses) < policy.recovery_patience


def carried_out(past: RollbackHistory, step: int) -> RollbackHistory:
    """What was done, once the rollback that was decided last has been carried out, after this step: of several
    processes that is one step later, whose loss is still one of the weights that were left.
    """
    if not past.rollbacks:
        return past
    return replace(past, rollbacks=(*past.rollbacks[:-1], replace(past.rollbacks[-1], at=step)), losses=(), first=())


def _data_changed(past: RollbackHistory, now: Situation) -> tuple[RollbackHistory, Decision]:
    """The weights are not to blame: train on from those of before, unless the restored ones are better by now.

    On the changed data, whichever has the lower loss has learnt more of it, or has been damaged less.
    """
    last = past.rollbacks[-1]
    loss, level = past.first[0], median(past.given)
    reason = (
        f"The weights of step {last.to} give a loss of {loss:.4g} where they gave {level:.4g}: "
        f"the data or the loss function changed at about step {last.first_seen}."
    )
    is_there = now.set_aside == last.at and len(past.left) > len(past.losses) // 2
    wanted = is_there and fmean(past.left) <= fmean(past.losses)
    returns = (*past.rollbacks[:-1], replace(last, cleared=True, undone=wanted))
    past = replace(past, rollbacks=returns, limit=None, losses=(), first=(), given=(), waiting=None, why_waiting="")
    decision = Decision("data_changed", reason, last.first_seen, loss=loss, level=level)
    return past, replace(decision, target=last.at, undoes=last.at - last.to) if wanted else decision


def _first_seen(trouble: _Trouble) -> int:
    """The first loss that was high, where the finding says which."""
    return int(trouble.event.evidence.get("first_high", trouble.onset)) if trouble.event is not None else trouble.onset


def _is_no_better(event: Event | None, state: GoodState) -> str:
    """Why going back to a state does not make a loss lower that can be negative; empty where it may.

    Such a loss has no level: a change of its scale, as of the rewards in reinforcement learning, looks like a rise.
    """
    risen, level = (event.evidence.get(name, math.nan) for name in ("loss", "level")) if event else (math.nan, math.nan)
    if not min(risen, level) < 0 or not state.around:
        return ""
    gave = median(state.around)
    return "" if gave < risen else f"The loss is not above that of step {state.step}, {gave:.4g}."


def _limit(event: Event | None, now: Situation, target: int) -> float | None:
    """Half way from the level of the restored state to where the loss stood when we went back.

    A state from the start of a training may be proven good only when its loss is far lower: what it gave itself counts.
    """
    risen, level = (event.evidence.get(name, math.nan) for name in ("loss", "level")) if event else (math.nan, math.nan)
    then = next(((each.loss, *each.around) for each in now.good if each.step == target), (math.nan,))
    gave = median(then[1:]) if len(then) > 1 else math.nan
    limit = max(level, then[0], gave) + (risen - level) / 2
    return limit if math.isfinite(limit) and risen > level else None


def _level(policy: RollbackPolicy, past: RollbackHistory, trouble: _Trouble) -> int:
    last = past.rollbacks[-1] if past.rollbacks else None
    if last is None or last.cleared or trouble.onset > last.at + policy.same_trouble_within:
        return 0
    return last.level + 1


def _spent(policy: RollbackPolicy, past: RollbackHistory, step: int) -> bool:
    """Whether we went back as often as the policy allows."""
    if len(past.rollbacks) >= policy.max_rollbacks_in_all:
        return True
    recent, until = 0, step
    for each in reversed(past.rollbacks):
        if until - each.at > policy.forgiven_after:
            break
        recent, until = recent + (not each.cleared), each.at
    return recent >= policy.max_rollbacks


def _target(
    policy: RollbackPolicy, past: RollbackHistory, good: Sequence[GoodState], trouble: _Trouble, rewind: int
) -> int | None:
    """The step of the state to go back to; the oldest from before the onset where none is old enough."""
    before = [each for each in good if each.step < trouble.onset and not _abandoned(past, each.step)]
    if trouble.skipped:  # nothing has changed since: no step was taken
        before = [each for each in before if not each.initial or each.step < trouble.onset - 1]
    if not before:
        return None
    enough = [each for each in before if each.step <= trouble.onset - max(rewind, 1)]
    if _level(policy, past, trouble):
        last = past.rollbacks[-1]
        # What was healthy again since then will do; the state that led here once, and its successors, will not.
        enough = [each for each in enough if each.step > last.at] or [each for each in enough if each.step < last.to]
    if not enough:
        return min(each.step for each in before)
    if policy.select == "best":
        return min(enough, key=lambda each: (math.inf if math.isnan(each.loss) else each.loss, -each.step)).step
    return max(each.step for each in enough)


def _lasting_share(policy: RollbackPolicy, past: RollbackHistory, trouble: _Trouble, level: int, proven: bool) -> float:
    """The share of the learning rate from now on: smaller with each return to the initial weights, and after one with
    each time that the trouble repeats.
    """
    if (proven and past.share >= 1) or not (level or (not proven and not trouble.one_step)):
        return past.share
    change = trouble.event.evidence.get("update_ratio", 1.0) if trouble.event else 1.0
    # A step that changed the weights by many times their norm was too large by about as much.
    return past.share * policy.initial_factor * max(policy.initial_factor**2, 1.0 / max(1.0, change))


def _last_resort(policy: RollbackPolicy, past: RollbackHistory, now: Situation, trouble: _Trouble) -> int | None:
    """The initial weights, where all else did not help and they were not tried yet."""
    if len(past.rollbacks) >= policy.max_rollbacks_in_all:
        return None
    return next(
        (
            each.step
            for each in now.good
            if each.initial and each.step < trouble.onset and all(one.to != each.step for one in past.rollbacks)
        ),
        None,
    )


def _abandoned(past: RollbackHistory, step: int) -> bool:
    """Whether a state of this step belongs to a course that was left by going back to before it."""
    return any(each.to < step <= each.at and not each.undone for each in past.rollbacks)
