"""Ends a training where the user asked for it: ``stop_on=("nonfinite", "grad_norm>100", "loss>50")``.

In: conditions as text, and what was measured at each step. Out: the condition that is met, or `TrainingDiverged`.
Guarantees: text that cannot be meant, a misspelt name above all, is refused at once and not never met.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mlflow_stability.errors import SettingsError, TrainingDiverged
from mlflow_stability.vocabulary.measured.condition import Condition, condition_in
from mlflow_stability.vocabulary.measured.observation import StepReading

QUANTITIES = (
    "loss",
    "grad_norm",
    "grad_norm_clipped",
    "learning_rate",
    "loss_scale",
    "micro_batches",
    "skipped_steps",
    "step_time",
)
"""What can be compared with a number."""
NONFINITE = ("loss", "grad_norm", "grad_norm_clipped")
"""What ``nonfinite`` looks at."""


@dataclass(frozen=True, slots=True)
class StopCondition:
    """One reason to end a training."""

    text: str
    condition: Condition | None = None
    """None: ``nonfinite``."""

    def is_met(self, quantity: str, value: float) -> bool:
        """Whether this value is a reason to stop."""
        if self.condition is None:
            return quantity in NONFINITE and not math.isfinite(value)
        return quantity == self.condition.signal.quantity and self.condition.holds(value)


def stop_conditions(texts: str | Iterable[str], quantities: Iterable[str] = QUANTITIES) -> tuple[StopCondition, ...]:
    """Read the conditions that a user wrote."""
    known = tuple(quantities)
    return tuple(_read(each, known) for each in ((texts,) if isinstance(texts, str) else texts))


def check_stop(conditions: Iterable[StopCondition], reading: StepReading, *, skipped: bool = False) -> None:
    """Raise `TrainingDiverged` if a step meets a condition.

    Args:
        conditions: Those of the user.
        reading: What was measured at the step.
        skipped: Whether a loss scaler threw the step away: that is how it finds its scale, and no reason to stop.
    """
    for condition in conditions:
        if skipped and condition.condition is None:
            continue
        for signal, value in zip(reading.signals, reading.values, strict=True):
            if condition.is_met(signal.quantity, value):
                raise TrainingDiverged(
                    f"Training stopped after step {reading.step}: {signal} is {value:.6g} "
                    f"(stop_on={condition.text}). The weights are those of this step; restore() loads the "
                    "last good state, if one exists."
                )


def _read(text: str, known: tuple[str, ...]) -> StopCondition:
    if text.strip() == "nonfinite":
        return StopCondition("nonfinite")
    condition = condition_in(text)
    if condition is None or condition.signal.place:
        raise SettingsError(f"stop_on takes 'nonfinite' or conditions such as 'loss>50', got {text!r}.")
    if condition.signal.quantity not in known:
        raise SettingsError(f"stop_on can compare {', '.join(known)}; got {condition.signal.quantity!r} in {text!r}.")
    if not math.isfinite(condition.limit):
        raise SettingsError(f"stop_on compares with a finite number, got {text!r}.")
    return StopCondition(condition.text, condition)
