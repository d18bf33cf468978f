"""What is said of going back, and of giving up.

In: a decision, and what restoring did. Out: an event with its reason, its target, the steps lost and the time it took.
"""

from __future__ import annotations

import math

from mlflow_stability.kinds.reported.autopilot import CheckpointFailedFacts, DataChanged, DataChangedFacts
from mlflow_stability.kinds.reported.nan_origin import NanOriginFacts, NanSource
from mlflow_stability.kinds.reported.rollback import GaveUp, GiveUpFacts, HeldRate, RollbackFacts
from mlflow_stability.recovery.rollback_decisions import UNDONE_AT_MOST
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.recovery.rollback_triggers import ABSURD_RISE
from mlflow_stability.recovery.state import SplitBy, StateSplit
from mlflow_stability.vocabulary.result import LOWER_RATE_3_TO_10_OR_WARM_UP, Action, Finding, Remedy, Severity

ROLLBACK = "rollback"
GIVE_UP = "give_up"
DATA_CHANGED = "data_changed"
CHECKPOINT_FAILED = "checkpoint_failed"
IN_HALF = (
    Remedy(Action.TRAIN_IN_BF16_OR_SINGLE),
    Remedy(Action.LOWER_SCALE_OF_SCALER),
)
IN_GENERAL = (
    LOWER_RATE_3_TO_10_OR_WARM_UP,
    Remedy(Action.INSPECT_BATCHES_SINCE_ONSET),
)
FROM_THE_START = (
    Remedy(Action.CHECK_FIRST_BATCH),
    Remedy(Action.CHECK_OPERATIONS),
    Remedy(Action.CHECK_INITIAL_WEIGHTS),
)
"""Where no step was ever taken: the learning rate has changed nothing yet."""
OF_SCALE = (Remedy(Action.CHECK_LOSS_SCALE_OF_DATA),)
"""Where a loss that can be negative rose, and is still below that of the state that could be restored."""


def rollback_event(
    decision: Decision,
    step: int,
    *,
    seconds: float,
    attempt: int,
    rollbacks: int,
    time: float = 0.0,
    learning_rate: float = math.nan,
    copies_left: int = 0,
    held: HeldRate | None = None,
    rate_of: str = "",
) -> Finding:
    """We went back. `attempt` is the one that ends with it, `rollbacks` how often we went back, this time included.

    `learning_rate`: that of the next step, where it is known. `held`: what it is held down to, where it is. `rate_of`:
    the name of its optimizer, where there are several.
    `copies_left`: how many frozen copies of the model are not in the restored state.
    """
    share = decision.lasting_share
    facts = RollbackFacts(
        decision.reason,
        decision.target,
        decision.onset,
        step - decision.target,
        seconds,
        rollbacks,
        steps_regained=decision.undoes or None,
        learning_rate=learning_rate if math.isfinite(learning_rate) else None,
        learning_rate_of=rate_of,
        learning_rate_share=share if share < 1 else None,
        easing_factor=decision.easing_factor,
        easing_steps=decision.easing_steps,
        held=held,
        copies_left=copies_left,
        finding="" if decision.finding is None else decision.finding.kind,
        finding_step=None if decision.finding is None else decision.finding.step,
    )
    remedies = (
        Remedy(Action.WATCH_LOSS),
        Remedy(Action.FIX_CAUSE_OF_FIRST_FINDING),
    )
    return Finding.at(facts, step, Severity.INFO, remedies=remedies, attempt=attempt, time=time)


def data_changed_event(decision: Decision, step: int, *, rollbacks: int) -> Finding:
    """The weights were not to blame for what we went back for."""
    facts = DataChangedFacts(
        decision.reason,
        decision.onset,
        rollbacks,
        decision.loss,
        decision.level,
        target=decision.target if decision.undoes else None,
    )
    return Finding.at(facts, step, Severity.WARNING, remedies=DataChanged.remedies)


SAVE_SHARDED = Remedy(Action.SAVE_SHARDS)
SAVE_SHARDED_OPTIMIZER = Remedy(Action.CONSOLIDATE_OPTIMIZER)


def no_checkpoints_event(split: StateSplit, step: int) -> Finding:
    """States are kept in memory alone, for no process holds all of one."""
    remedies = (SAVE_SHARDED_OPTIMIZER if split.by is SplitBy.OPTIMIZER else SAVE_SHARDED,)
    return Finding.at(CheckpointFailedFacts(split_by=str(split)), step, Severity.WARNING, remedies=remedies)


def not_restored_event(decision: Decision, step: int, why: str, *, rollbacks: int, not_restored: str = "") -> Finding:
    """We wanted to go back and could not; `not_restored`: what is neither as it was nor as it should be."""
    facts = GiveUpFacts(
        GaveUp.NOT_RESTORED,
        decision.reason,
        decision.onset,
        rollbacks,
        target=decision.target,
        failure=why,
        not_restored=not_restored,
    )
    remedies = (
        Remedy(Action.RESTORE_BY_RUN),
        Remedy(Action.BUILD_MODELS_ONCE),
    )
    return Finding.at(facts, step, Severity.CRITICAL, remedies=remedies)


def what_to_change(
    origin: Finding | None = None, *, overflowed_in_half: bool = False, no_step_taken: bool = False
) -> tuple[Remedy, ...]:
    """What goes against trouble that going back does not end, most useful first.

    Where it is known in which operation the first bad number was born, what goes against that; of the loss function it
    is not known whether it was an overflow.
    """
    facts = None if origin is None else origin.facts
    of_loss = isinstance(facts, NanOriginFacts) and facts.source is NanSource.LOSS
    half = IN_HALF if overflowed_in_half and (origin is None or of_loss) else ()
    general = FROM_THE_START if no_step_taken else IN_GENERAL
    return (*half, *(() if origin is None else origin.remedies), *general)


def level_ignored_event(decision: Decision, step: int, *, rollbacks: int) -> Finding:
    """Rollbacks were reverted because they gave no lower loss: a higher loss triggers none any more."""
    reason = (
        f"No further rollbacks for a loss that rises: {UNDONE_AT_MOST} were reverted, because older weights gave no "
        "lower loss. This loss rises without its weights being worse. Non-finite values, and a loss "
        f"{ABSURD_RISE:,.0f} times its level, are still answered."
    )
    facts = GiveUpFacts(GaveUp.LEVEL_IGNORED, reason, decision.onset, rollbacks, final=False)
    remedies = (Remedy(Action.JUDGE_BY_GOAL),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def give_up_event(
    decision: Decision,
    step: int,
    *,
    attempt: int,
    rollbacks: int,
    time: float = 0.0,
    ends: bool = False,
    remedies: tuple[Remedy, ...] = IN_GENERAL,
) -> Finding:
    """There is trouble, and we do not go back; `ends`: the training is stopped for it."""
    facts = GiveUpFacts(
        GaveUp.NO_ROLLBACK, decision.reason, decision.onset, rollbacks, final=decision.final, ended_training=ends
    )
    severity = Severity.CRITICAL if decision.final else Severity.WARNING
    return Finding.at(facts, step, severity, remedies=remedies, attempt=attempt, time=time)
