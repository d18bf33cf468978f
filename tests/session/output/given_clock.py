"""A clock that the test moves, for output that waits before it is printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlflow_stability.session import training_output


class GivenClock:
    """Stands for `time` and `Timer`: it is as late as the test says, and calls who waits for that."""

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting: list[tuple[float, GivenTimer]] = []

    def time_output(self, patch: pytest.MonkeyPatch) -> None:
        """Have the lines of a session wait by this clock."""
        patch.setattr(training_output, "time", self)
        patch.setattr(training_output, "Timer", self.timer)

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
        due = [timer for at, timer in self._waiting if at <= self._now]
        self._waiting = [row for row in self._waiting if row[1] not in due]
        for timer in due:
            timer.call()

    def timer(self, seconds: float, call: Callable[[], None]) -> GivenTimer:
        return GivenTimer(self, seconds, call)

    def wait_for(self, timer: GivenTimer) -> None:
        self._waiting.append((self._now + timer.seconds, timer))

    def forget(self, timer: GivenTimer) -> None:
        self._waiting = [row for row in self._waiting if row[1] is not timer]


class GivenTimer:
    def __init__(self, clock: GivenClock, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.call, self._clock = seconds, call, clock
        self.daemon = False

    def start(self) -> None:
        self._clock.wait_for(self)

    def cancel(self) -> None:
        self._clock.forget(self)
