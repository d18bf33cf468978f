"""What is said of going back, and of giving up.

In: a decision, and what restoring did. Out: an event with its reason, its target, the steps lost and the time it took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlflow_stability.detectors.reported import ENDED_TRAINING, DataChanged
from mlflow_stability.probes.objects import ZERO
from mlflow_stability.recovery.rollback_decisions import UNDONE_AT_MOST
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.recovery.rollback_triggers import ABSURD_RISE
from mlflow_stability.vocabulary.result import Event, Severity

ROLLBACK = "rollback"
GIVE_UP = "give_up"
DATA_CHANGED = "data_changed"
CHECKPOINT_FAILED = "checkpoint_failed"
IN_HALF = (
    "Train in bf16 instead of fp16, or compute values above 65504 in float32.",
    "With a loss scaler: lower the loss scale.",
)
IN_GENERAL = (
    "Lower the learning rate by a factor of 3 to 10, or lengthen the warm-up.",
    "Inspect the batches from the onset on, and the first finding before this one.",
)
FROM_THE_START = (
    "Check that the first batch has targets, and is finite.",
    "Check exponentials, logarithms, roots and divisions in the model and its loss function.",
    "Check the initial weights.",
)
"""Where no step was ever taken: the learning rate has changed nothing yet."""
OF_SCALE = ("Check whether the scale of the loss changed, such as that of rewards.",)
"""Where a loss that can be negative rose, and is still below that of the state that could be restored."""


@dataclass(frozen=True, slots=True)
class HeldRate:
    """A learning rate that had jumped, and is held down to that of the restored state."""

    scheduled: float
    """What the script has set."""
    limit: float
    doubles_in: int

    def beside(self, target: int) -> str:
        """Behind "its scheduled value": of when, and which it is not."""
        return f" of step {target}, {self.limit:.4g} (the present {self.scheduled:.4g} is a jump),"


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
) -> Event:
    """We went back. `attempt` is the one that ends with it, `rollbacks` how often we went back, this time included.

    `learning_rate`: that of the next step, where it is known. `held`: what it is held down to, where it is. `rate_of`:
    the name of its optimizer, where there are several.
    `copies_left`: how many frozen copies of the model are not in the restored state.
    """
    lost = step - decision.target
    eased = ""
    done = f"Rolled back from step {step} to step {decision.target} ({lost} steps lost)"
    if decision.undoes:
        done = f"Reverted the rollback: weights of step {decision.target} restored ({decision.undoes} steps regained)"
    known = math.isfinite(learning_rate)
    copies = f" Not restored: frozen copies of the model made after step {decision.target} ({copies_left})."
    copies = copies if copies_left else ""
    whose = f" of {rate_of}" if rate_of else ""
    now = f" Learning rate{whose} now {learning_rate:.4g}: it" if known else f" Learning rate{whose}"
    share = decision.lasting_share
    if share < 1:
        eased = (
            f"{now} is limited to {share:g} times its scheduled value from now on, after a ramp from "
            f"{share * decision.easing_factor:g} times over {decision.easing_steps} steps."
        )
    elif decision.easing_factor < 1:
        beside = "" if held is None else held.beside(decision.target)
        eased = (
            f"{now} starts at {decision.easing_factor:g} times its scheduled value{beside} and returns to it over "
            f"{decision.easing_steps} steps."
        )
        if held is not None:
            eased += f" That limit doubles every {held.doubles_in} steps."
    return Event(
        step,
        ROLLBACK,
        Severity.INFO,
        f"{done}: {decision.reason}{eased}{copies}",
        evidence={
            "target": float(decision.target),
            "onset": float(decision.onset),
            "steps_lost": float(lost),
            "seconds": seconds,
            "rollbacks": float(rollbacks),
            **({"learning_rate_share": share} if share < 1 else {}),
            **({"steps_regained": float(decision.undoes)} if decision.undoes else {}),
            **({"learning_rate": learning_rate} if known else {}),
        },
        remedies=(
            "Watch the loss for the next 1000 steps.",
            "Fix the cause: inspect the first finding before this rollback.",
        ),
        attempt=attempt,
        time=time,
    )


def data_changed_event(decision: Decision, step: int, *, rollbacks: int) -> Event:
    """The weights were not to blame for what we went back for."""
    if decision.undoes:
        after = f"Going back to the weights of step {decision.target}, as they were before the rollback."
    else:
        after = "The training continues from the restored weights."
    evidence = {
        "onset": float(decision.onset),
        "rollbacks": float(rollbacks),
        "loss": decision.loss,
        "level": decision.level,
    }
    return Event(
        step,
        DATA_CHANGED,
        Severity.WARNING,
        f"{decision.reason} {after} The present loss becomes the baseline.",
        evidence=evidence | ({"target": float(decision.target)} if decision.undoes else {}),
        remedies=DataChanged.remedies,
    )


SAVE_SHARDED = "Save checkpoints with torch.distributed.checkpoint, from all processes."
SAVE_SHARDED_OPTIMIZER = (
    f"Call consolidate_state_dict() of {ZERO} on every rank, then save model and optimizer on rank 0."
)


def no_checkpoints_event(split: str, step: int) -> Event:
    """States are kept in memory alone, for no process holds all of one."""
    return Event(
        step,
        CHECKPOINT_FAILED,
        Severity.WARNING,
        f"No checkpoints written: the state is split over processes ({split}), and one file would hold only a "
        "part of it. Rollbacks to snapshots in memory still work.",
        remedies=(SAVE_SHARDED_OPTIMIZER if split == ZERO else SAVE_SHARDED,),
    )


def not_restored_event(decision: Decision, step: int, why: str, *, rollbacks: int, torn: str = "") -> Event:
    """We wanted to go back and could not; `torn` says what is neither as it was nor as it should be, if anything is."""
    now = torn or f"Nothing was changed: weights, buffers and optimizer state are those of step {step}."
    return Event(
        step,
        GIVE_UP,
        Severity.CRITICAL,
        f"Rollback from step {step} to step {decision.target} failed ({why}). {now} No further rollbacks; "
        f"broken steps are still skipped. Reason for the rollback: {decision.reason}",
        evidence={"onset": float(decision.onset), "rollbacks": float(rollbacks)},
        remedies=(
            "Restart from a checkpoint with restore(model, optimizer, run_id=...).",
            "Build models and optimizers once, with the same ones in all processes.",
        ),
    )


def what_to_change(
    origin: Event | None = None, *, overflowed_in_half: bool = False, no_step_taken: bool = False
) -> tuple[str, ...]:
    """What goes against trouble that going back does not end, most useful first.

    Where it is known in which operation the first bad number was born, what goes against that; of the loss function it
    is not known whether it was an overflow.
    """
    half = IN_HALF if overflowed_in_half and (origin is None or "from.loss" in origin.evidence) else ()
    general = FROM_THE_START if no_step_taken else IN_GENERAL
    return (*half, *(() if origin is None else origin.remedies), *general)


def level_ignored_event(decision: Decision, step: int, *, rollbacks: int) -> Event:
    """Rollbacks were reverted because they gave no lower loss: a higher loss triggers none any more."""
    return Event(
        step,
        GIVE_UP,
        Severity.INFO,
        f"No further rollbacks for a loss that rises: {UNDONE_AT_MOST} were reverted, because older weights gave no "
        "lower loss. This loss rises without its weights being worse. Non-finite values, and a loss "
        f"{ABSURD_RISE:,.0f} times its level, are still answered.",
        evidence={"onset": float(decision.onset), "rollbacks": float(rollbacks)},
        remedies=("Judge this training by what it is to achieve, such as a return or a validation score.",),
    )


def give_up_event(
    decision: Decision,
    step: int,
    *,
    attempt: int,
    rollbacks: int,
    time: float = 0.0,
    ends: bool = False,
    remedies: tuple[str, ...] = IN_GENERAL,
) -> Event:
    """There is trouble, and we do not go back; `ends`: the training is stopped for it."""
    after = " No further rollbacks; broken steps are still skipped." if decision.final else ""
    if ends:
        after = " Training stopped with TrainingDiverged."
    return Event(
        step,
        GIVE_UP,
        Severity.CRITICAL if decision.final else Severity.WARNING,
        f"No rollback at step {step}: {decision.reason}{after}",
        evidence={
            "onset": float(decision.onset),
            "rollbacks": float(rollbacks),
            **({ENDED_TRAINING: 1.0} if ends else {}),
        },
        remedies=remedies,
        attempt=attempt,
        time=time,
    )
