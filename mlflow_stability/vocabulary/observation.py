"""One number that was measured, and all the numbers of one cycle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlflow_stability.vocabulary.signal import Signal


@dataclass(frozen=True, slots=True)
class Observation:
    """One value of one signal at one step."""

    signal: Signal
    step: int
    value: float
    attempt: int = 0
    """How many times the training had been set back before this step."""
    time: float = 0.0
    """Seconds since the epoch, when the step ended."""


@dataclass(frozen=True, slots=True)
class StepReading:
    """Everything that was measured in one cycle: what the journal keeps as one line."""

    step: int
    signals: tuple[Signal, ...]
    values: tuple[float, ...]
    attempt: int = 0
    time: float = 0.0

    def observations(self) -> Iterator[Observation]:
        """The single values, in the order in which they are judged."""
        for signal, value in zip(self.signals, self.values, strict=True):
            yield Observation(signal, self.step, value, self.attempt, self.time)
