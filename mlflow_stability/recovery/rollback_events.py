"""What is said of going back, and of giving up.

In: a decision, and what restoring did. Out: an event with its reason, its target, the steps lost and the time it took.
"""

from __future__ import annotations

from mlflow_stability.recovery.decisions import Decision
from mlflow_stability.vocabulary.event import Event, Severity

ROLLBACK = "rollback"
GIVE_UP = "give_up"


def rollback_event(
    decision: Decision, step: int, *, seconds: float, attempt: int, returns: int, time: float = 0.0
) -> Event:
    """We went back. `attempt` is the one that ends with it, `returns` how often we went back, this time included."""
    lost = step - decision.target
    eased = ""
    if decision.easing_factor < 1:
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
        },
        remedies=("Watch the next 1000 steps.", "Fix the cause: the first event before this one says where to look."),
        attempt=attempt,
        time=time,
    )


def give_up_event(decision: Decision, step: int, *, attempt: int, returns: int, time: float = 0.0) -> Event:
    """There is trouble, and we do not go back."""
    after = " Broken steps are skipped on; otherwise the training is left to itself." if decision.final else ""
    return Event(
        step,
        GIVE_UP,
        Severity.CRITICAL if decision.final else Severity.WARNING,
        f"Not set back at step {step}: {decision.reason}{after}",
        evidence={"onset": float(decision.onset), "rollbacks": float(returns)},
        remedies=(
            "Lower the learning rate 3-10 times, or warm it up longer.",
            "Look at the batches from the onset on, and at the first event before this one.",
        ),
        attempt=attempt,
        time=time,
    )
