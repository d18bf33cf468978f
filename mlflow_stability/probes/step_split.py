"""Adds up which part of a step took how long, from marks in their order.

In: marks, each with a time from any clock. Out: seconds by part. Promised: a part is only there when its beginning and
its end were both seen; what lies between them in time and belongs to none, such as clipping, is left out.

Waiting for data is the time from the end of a step, or of a backward pass, to the next forward pass: whatever the
script does in between, its data loader first of all. Evaluation in between is taken out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum


class Mark(IntEnum):
    """A moment of a step."""

    FORWARD_BEGAN = 0
    FORWARD_ENDED = 1
    BACKWARD_BEGAN = 2
    BACKWARD_ENDED = 3
    GATE = 4
    STEP_ENDED = 5
    EVALUATED = 6


DATA, FORWARD, BACKWARD, OPTIMIZER = "data_time", "forward_time", "backward_time", "optimizer_time"
PARTS = (DATA, FORWARD, BACKWARD, OPTIMIZER)

_ENDS: dict[tuple[Mark, Mark], int] = {
    (Mark.STEP_ENDED, Mark.FORWARD_BEGAN): 0,
    (Mark.BACKWARD_ENDED, Mark.FORWARD_BEGAN): 0,
    (Mark.EVALUATED, Mark.FORWARD_BEGAN): 0,
    (Mark.FORWARD_BEGAN, Mark.FORWARD_ENDED): 1,
    (Mark.BACKWARD_BEGAN, Mark.BACKWARD_ENDED): 2,
    (Mark.GATE, Mark.STEP_ENDED): 3,
}
"""Which part ends with a mark, by the mark that came right before it and that mark."""
_PART = tuple([tuple([_ENDS.get((before, mark), -1) for mark in Mark]) for before in Mark])
"""The same, to be asked six times a step; -1: none."""
_GATE, _STEP_ENDED = int(Mark.GATE), int(Mark.STEP_ENDED)


class StepSplit:
    """The parts of one or several cycles, as far as they were seen."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.cycles = 0
        """How many are over; whoever knows that one is counts it here."""
        self.also: Callable[[int], None] | None = None
        """Who takes the same moments down by another clock."""
        self._now = now
        self._seconds = [0.0] * len(PARTS)
        self._times = [0] * len(PARTS)
        """In how many cycles each part was seen."""
        self._seen = [-1] * len(PARTS)
        """The cycle in which it was seen last."""
        self._last: int = Mark.EVALUATED
        self._when: float | None = None

    def mark(self, mark: int, when: float | None = None) -> None:
        """Take down a moment: this one, or another."""
        if self.also is not None:
            self.also(mark)
        last = self._last
        if last == _GATE and mark != _STEP_ENDED and mark != _GATE:
            return  # a closure is evaluated again: that is the optimizer's own time
        moment = self._now() if when is None else when
        part = _PART[last][mark]
        if part >= 0 and self._when is not None:
            self._seconds[part] += moment - self._when
            if self._seen[part] != self.cycles:
                self._seen[part] = self.cycles
                self._times[part] += 1
        self._last, self._when = mark, moment

    def take(self) -> dict[str, float]:
        """The mean of each part over the cycles in which it was seen; the next ones begin at zero."""
        found = {
            name: seconds / times
            for name, seconds, times in zip(PARTS, self._seconds, self._times, strict=True)
            if times
        }
        self._seconds, self._times, self._seen = [0.0] * len(PARTS), [0] * len(PARTS), [-1] * len(PARTS)
        return found
