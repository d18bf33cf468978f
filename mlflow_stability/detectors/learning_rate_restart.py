"""Knows when the learning rate has just been restarted on purpose, after which the loss rises for a while.

Schedules with warm restarts and cycles bring the rate back to where it has been before, at once or nearly so. A rate
that jumps beyond its highest is no restart, and excuses nothing; it ends the excuse of a restart before it. A rate that
had jumped shortly before a rollback is none that the training has had before: the schedule may well write it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_stability.vocabulary.measured.signal import Signal

MIN_RISE = 1.5
"""The least growth in one step that makes a restart, or a jump: which of the two is told by the highest so far."""
MAX_RESTART = 1.05
"""How far beyond the highest rate so far a restart may go, as a multiple; from there on it is a jump."""
RESTART_STEPS = 200
"""For how many steps the rise of the loss belongs to it."""


@dataclass(slots=True)
class RateRestart:
    """The learning rate so far, and the step of its last restart."""

    last: float = 0.0
    highest: float = 0.0
    at: int | None = None
    seen: int = 0
    """The last step."""
    jumped_at: int | None = None
    """The step of the last jump, ..."""
    before_jump: float = 0.0
    """... and the highest rate before it."""
    is_barred: bool = False
    """Whether the present rate was rolled back from, and so counts for nothing until it has come down."""

    def see(self, rate: float, step: int) -> None:
        """Take the rate of a step."""
        self.seen = step
        if rate != self.last:
            if 0 < self.last * MIN_RISE <= rate:
                if rate <= self.highest * MAX_RESTART:
                    self.at = step
                else:
                    self.at, self.jumped_at, self.before_jump = None, step, self.highest
            self.last = rate
            self.is_barred = self.is_barred and rate > self.highest * MAX_RESTART
            if rate > self.highest and not self.is_barred:
                self.highest = rate

    def after_rollback(self) -> RateRestart:
        """What is still known after a rollback: the rates of the schedule, but for one that had jumped just before."""
        if self.jumped_at is None or self.seen - self.jumped_at > RESTART_STEPS:
            return RateRestart(self.last, self.highest, seen=self.seen)
        return RateRestart(self.last, self.before_jump, seen=self.seen, is_barred=True)

    def excuses(self, step: int) -> bool:
        """Whether a rise at this step belongs to a restart."""
        return self.at is not None and 0 <= step - self.at <= RESTART_STEPS


class OptimizersOfLosses:
    """By place of a loss: the optimizers that have stepped for it, as the places of their learning rates."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}

    def losses_with_new_optimizers(self, signals: Sequence[Signal]) -> list[int]:
        """Which of these signals are losses for which only optimizers step that never did before."""
        rates = {signal.place for signal in signals if signal.quantity == "learning_rate"}
        found = []
        for index, signal in enumerate(signals):
            if signal.quantity == "loss" and rates:
                seen = self._seen.setdefault(signal.place, set())
                if seen and not rates & seen:
                    found.append(index)
                seen |= rates
        return found
