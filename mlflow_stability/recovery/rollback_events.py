"""What is said of going back, and of giving up.

In: a decision, and what restoring did. Out: an event with its reason, its target, the steps lost and the time it took.
"""

from __future__ import annotations

from mlflow_stability.recovery.decisions import Decision
from mlflow_stability.vocabulary.result.event import Event, Severity

ROLLBACK = "rollback"
GIVE_UP = "give_up"
CHECKPOINT_FAILED = "checkpoint_failed"
IN_HALF = (
    "Train in bf16 instead of fp16, or compute in float32 what exceeds 65504.",
    "Where the loss is scaled, lower the scale.",
)
IN_GENERAL = (
    "Lower the learning rate 3-10 times, or warm it up longer.",
    "Inspect the batches from the onset on, and the first event before this one.",
)


def rollback_event(
    decision: Decision, step: int, *, seconds: float, attempt: int, returns: int, time: float = 0.0
) -> Event:
    """We went back. `attempt` is the one that ends with it, `returns` how often we went back, this time included."""
    lost = step - decision.target
    eased = ""
    share = decision.lasting_share
    if share < 1:
        eased = (
            f" The learning rate is {share:g} of its own for the rest of the training, reached from "
            f"{share * decision.easing_factor:g} over {decision.easing_steps} steps."
        )
    elif decision.easing_factor < 1:
        eased = (
            f" The learning rate is {decision.easing_factor:g} of its own, released over {decision.easing_steps} steps."
        )
    return Event(
        step,
        ROLLBACK,
        Severity.INFO,
        f"Set back from step {step} to the state of step {decision.target}, {lost} steps lost: "
        f"{decision.reason}{eased}",
        evidence={
            "target": float(decision.target),
            "onset": float(decision.onset),
            "steps_lost": float(lost),
            "seconds": seconds,
            "rollbacks": float(returns),
            **({"learning_rate_share": share} if share < 1 else {}),
        },
        remedies=("Watch the next 1000 steps.", "Fix the cause: the first event before this one says where to look."),
        attempt=attempt,
        time=time,
    )


def no_checkpoints_event(split: str, step: int) -> Event:
    """States are kept in memory alone, for no process holds all of one."""
    return Event(
        step,
        CHECKPOINT_FAILED,
        Severity.WARNING,
        f"No checkpoints are written: the state is split over processes ({split}), and a file would hold a part of it. "
        "The training can still be set back to states in memory.",
        remedies=("Save checkpoints with torch.distributed.checkpoint, from all processes.",),
    )


def not_restored_event(decision: Decision, step: int, why: str, *, returns: int, torn: str = "") -> Event:
    """We wanted to go back and could not; `torn` says what is neither as it was nor as it should be, if anything is."""
    now = torn or f"Nothing was changed: weights, buffers and optimizer state are those of step {step}."
    return Event(
        step,
        GIVE_UP,
        Severity.CRITICAL,
        f"Not set back at step {step} to the state of step {decision.target} ({why}). {now} "
        f"Nothing is set back any more; broken steps are skipped on. Why it was tried: {decision.reason}",
        evidence={"onset": float(decision.onset), "rollbacks": float(returns)},
        remedies=(
            "Restart from a checkpoint with restore(model, optimizer, run_id=...).",
            "Build models and optimizers once, and let all processes hold the same ones.",
        ),
    )


def what_to_change(origin: Event | None = None, *, overflowed_in_half: bool = False) -> tuple[str, ...]:
    """What goes against trouble that going back does not end, most useful first.

    Where it is known in which operation the first bad number was born, what goes against that; of the loss function it
    is not known whether it was an overflow.
    """
    half = IN_HALF if overflowed_in_half and (origin is None or "from.loss" in origin.evidence) else ()
    return (*half, *(() if origin is None else origin.remedies), *IN_GENERAL)


def give_up_event(
    decision: Decision,
    step: int,
    *,
    attempt: int,
    returns: int,
    time: float = 0.0,
    ends: bool = False,
    remedies: tuple[str, ...] = IN_GENERAL,
) -> Event:
    """There is trouble, and we do not go back; `ends`: the training is stopped for it."""
    after = " Broken steps are skipped on; otherwise the training is left to itself." if decision.final else ""
    if ends:
        after = " The training is stopped: TrainingDiverged is raised."
    return Event(
        step,
        GIVE_UP,
        Severity.CRITICAL if decision.final else Severity.WARNING,
        f"Not set back at step {step}: {decision.reason}{after}",
        evidence={"onset": float(decision.onset), "rollbacks": float(returns)},
        remedies=remedies,
        attempt=attempt,
        time=time,
    )
