"""Recognise restarts of the learning rate, after which a rise of the loss is expected.

Cyclic schedules and warm restarts bring the rate back to where it has been before, in one step or nearly so. A
jump beyond the highest rate is no restart, and ends the grace period of the restart before it. A rate that jumped
shortly before a rollback does not count as reached: the schedule may well write it again.

A learning-rate range test raises the rate by the same factor in each step, until the loss rises: that is its purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlflow_stability.vocabulary.measured.signal import Signal

MIN_RISE = 1.5  # minimum growth of the rate in one step for a restart or a jump
MAX_RESTART = 1.05  # maximum ratio of a restart to the highest rate before it; a larger one is a jump
RESTART_STEPS = 200  # number of steps after a restart during which rises of the loss are expected
RANGE_TEST_STEPS = 20  # minimum number of steps of a range test in which the rate has grown by the same factor
RANGE_TEST_RISE = 1000.0  # minimum growth of the rate in them
MAX_CONSTANT = 4  # maximum number of steps at the first rate of a range test
SAME_GROWTH = 0.01  # largest relative difference between the logarithms of two growth factors that are the same


@dataclass(slots=True)
class RangeTest:
    """A rate that has grown by the same factor in each of the last steps."""

    last: float = 0.0
    growth: float = 0.0  # logarithm of the last growth factor
    steps: int = 0  # number of steps in a row with this growth
    begun_at: float = 0.0  # the rate before them
    constant: int = 0  # number of last steps without a change
    trained_before: bool = False  # whether the model was trained at the rate from which it grows: the schedule is wrong

    def see(self, rate: float) -> None:
        growth = math.log(rate / self.last) if 0 < self.last < rate < math.inf else 0.0
        if growth == 0.0 or abs(growth - self.growth) > SAME_GROWTH * growth:
            self.steps, self.begun_at, self.growth = int(growth > 0), self.last, growth
            self.trained_before = growth > 0 and self.constant > MAX_CONSTANT
        else:
            self.steps += 1
        self.constant = self.constant + 1 if rate == self.last else 0
        self.last = rate

    @property
    def is_running(self) -> bool:
        """Whether this is a range test, and no short warm-up."""
        grew = self.steps >= RANGE_TEST_STEPS and self.last >= RANGE_TEST_RISE * self.begun_at > 0
        return grew and not self.trained_before


@dataclass(slots=True)
class RateRestart:
    last: float = 0.0
    highest: float = 0.0
    at: int | None = None  # the step of the last restart
    step: int = 0  # the last step
    jumped_at: int | None = None  # the step of the last jump
    before_jump: float = 0.0  # the highest rate before that jump
    is_barred: bool = False  # whether the current rate was rolled back from, and does not count until it has come down
    test: RangeTest = field(default_factory=RangeTest)

    def see(self, rate: float, step: int) -> None:
        if step != self.step or rate != self.last:  # groups of one step have the same rate
            was_test = self.test.is_running
            self.test.see(rate)
            if was_test and not self.test.is_running:  # the weights go back to where they were before it
                self.at, self.highest, self.last = step, rate, rate
        self.step = step
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
        """Return the rates that remain known: those of the schedule, without a jump just before the rollback."""
        if self.jumped_at is None or self.step - self.jumped_at > RESTART_STEPS:
            return RateRestart(self.last, self.highest, step=self.step)
        return RateRestart(self.last, self.before_jump, step=self.step, is_barred=True)

    def excuses(self, step: int) -> bool:
        """Whether a rise of the loss at this step is expected."""
        return self.test.is_running or (self.at is not None and 0 <= step - self.at <= RESTART_STEPS)


class OptimizersOfLosses:
    """The optimizers that have stepped for each loss, as the places of their learning rates."""

    __slots__ = ("_by_loss",)

    def __init__(self) -> None:
        self._by_loss: dict[str, set[str]] = {}

    def losses_with_new_optimizers(self, signals: Sequence[Signal]) -> list[int]:
        """Return the indices of losses whose optimizers all step for them for the first time."""
        rates = {signal.place for signal in signals if signal.quantity == "learning_rate"}
        if not rates:
            return []
        indices = []
        for index, signal in enumerate(signals):
            if signal.quantity == "loss":
                earlier = self._by_loss.setdefault(signal.place, set())
                if earlier and not rates & earlier:
                    indices.append(index)
                earlier |= rates
        return indices
