"""Knows when the learning rate has just been restarted on purpose, after which the loss rises for a while.

Schedules with warm restarts and cycles bring the rate back to where it has been before, at once or nearly so. A rate
that leaps beyond its highest is no restart, and excuses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RISE = 1.5
"""The least growth in one step that makes a restart, or a jump: which of the two is told by the highest so far."""
NOT_BEYOND = 1.05
"""How far beyond the highest rate so far a restart may go, as a multiple; from there on it is a jump."""
EXCUSES = 200
"""For how many steps the rise of the loss belongs to it."""


@dataclass(slots=True)
class RateRestart:
    """The learning rate so far, and the step of its last restart."""

    last: float = 0.0
    highest: float = 0.0
    at: int | None = None

    def see(self, rate: float, step: int) -> None:
        """Take the rate of a step."""
        if rate != self.last:
            if 0 < self.last * LEAST_RISE <= rate <= self.highest * NOT_BEYOND:
                self.at = step
            self.last = rate
            if rate > self.highest:
                self.highest = rate

    def excuses(self, step: int) -> bool:
        """Whether a rise at this step belongs to a restart."""
        return self.at is not None and 0 <= step - self.at <= EXCUSES
