"""Has steps judged a little after they were kept, several at a time: one by one that takes three times as long.

In: steps as they are kept, in their order. Out: calls of whoever judges. Guarantees: every step is judged once, in
order. Where nothing of the training depends on it, at the latest a second after it was kept, also while the training
stands still: then a thread of ours does it; what is not finite is judged at once, with all that came before it. There
is no such thread while the process forks, nor in the forked process, and none once `stop` was called. An error in that
thread is raised where the training comes next. Where the autopilot acts on findings, only steps whose loss and gradient
norm are usual wait, by their number and not by the clock: the same training is rolled back at the same steps again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from math import isfinite
from typing import Protocol
from weakref import WeakSet

from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding

MOST = 64
"""So many steps wait at most (in groups of 32 each costs a twentieth more, in larger ones nothing less), ..."""
SECONDS = 0.25
"""... and none once so long has passed from the last step that was judged: slow steps are judged each at once."""
IDLE_SECONDS = 0.5
"""What waits at two looks of the thread, so far apart, is judged by it."""
GROUP = 8
"""So many usual steps are judged together where the autopilot acts on what is found."""


class Judging(Enum):
    """When the steps of a recording are judged."""

    AT_ONCE = "each step at once"
    GROUPED = "usual steps in groups, any other step at once"
    DEFERRED = "within a second"


class Detection(Protocol):
    """Has the steps of one recording judged."""

    def take(self, step: StepReading) -> list[Finding]:
        """Judge this step now or soon; gives what was found now, in this step and in those before it."""

    def settle(self) -> list[Finding]:
        """Judge all that waits."""

    def stop(self) -> None:
        """Nothing more is judged but by `take` and `settle`."""


class GroupedDetection:
    """Judges usual steps in groups, and any other step at once, after those that wait.

    A sudden rise from a level that stood is therefore found at its own step, all else at most seven steps later.
    """

    def __init__(self, judge: Callable[[StepReading], list[Finding]], is_usual: Callable[[StepReading], bool]) -> None:
        self._judge, self._is_usual = judge, is_usual
        self._waiting: deque[StepReading] = deque()

    def take(self, step: StepReading) -> list[Finding]:
        """Judge this step, and those before it, unless it can wait."""
        self._waiting.append(step)
        if len(self._waiting) < GROUP and self._is_usual(step):
            return []
        return self.settle()

    def settle(self) -> list[Finding]:
        """Judge all that waits."""
        findings: list[Finding] = []
        while self._waiting:
            findings += self._judge(self._waiting.popleft())
        return findings

    def stop(self) -> None:
        """Nothing runs beside the training."""


class DeferredDetection:
    """The steps of one recording that wait to be judged."""

    def __init__(self, judge: Callable[[StepReading], list[Finding]]) -> None:
        self._judge = judge
        self._waiting: deque[StepReading] = deque()
        self._judged_at = 0.0
        """When the last step that was judged had ended."""
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._failure: Exception | None = None

    def take(self, step: StepReading) -> list[Finding]:
        """Judge this step now or soon; gives what was found now, in this step and in those before it."""
        with self._lock:
            self._waiting.append(step)
            late = step.time - self._judged_at
            if len(self._waiting) >= MOST or not 0 <= late < SECONDS or not isfinite(sum(step.values)):
                return self.settle()
        if self._thread is None and not self._start():
            return self.settle()
        return []

    def settle(self) -> list[Finding]:
        """Judge all that waits."""
        found: list[Finding] = []
        with self._lock:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            while self._waiting:
                step = self._waiting.popleft()
                self._judged_at = step.time
                found += self._judge(step)
        return found

    def stop(self) -> None:
        """End the thread; it begins anew with the next step that waits."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._over.set()
            thread.join(2 * IDLE_SECONDS)

    def resume(self) -> None:
        """Begin the thread again where steps wait for it."""
        if self._waiting:
            self._start()

    def _start(self) -> bool:
        """Begin the thread; False where there can be none: at the exit of the process, or under its limit."""
        with self._lock:  # the training, and whoever has just forked
            if self._thread is not None:
                return True
            self._over = threading.Event()
            thread = threading.Thread(
                target=self._look_after, args=(self._over,), name="mlflow-stability judge", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
            _live.add(self)
            return True

    def _look_after(self, over: threading.Event) -> None:
        before: StepReading | None = None
        while not over.wait(IDLE_SECONDS):
            first = self._first()
            if first is not None and first is before and self._lock.acquire(blocking=False):  # else somebody judges
                try:
                    self.settle()
                except Exception as error:
                    self._failure = error
                    return
                finally:
                    self._lock.release()
            before = first

    def _first(self) -> StepReading | None:
        try:
            return self._waiting[0]
        except IndexError:
            return None


_live: WeakSet[DeferredDetection] = WeakSet()


def _before_fork() -> None:
    for each in list(_live):
        each.stop()


def _after_fork() -> None:
    for each in list(_live):
        each.resume()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
