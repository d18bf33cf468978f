"""Adds up which part of a step took how long, from marks in their order.

In: marks, each with a time from any clock. Out: seconds by part. Promised: a part is only there when its beginning and
its end were both seen; what lies between them in time and belongs to none, such as clipping, is left out.

Waiting for data is the time from the end of a step, or of a backward pass, to the next forward pass: whatever the
script does in between, its data loader first of all. Evaluation in between is taken out.
"""

from __future__ import annotations

from enum import Enum


class Mark(Enum):
    """A moment of a step."""

    FORWARD_BEGAN = "forward began"
    FORWARD_ENDED = "forward ended"
    BACKWARD_BEGAN = "backward began"
    BACKWARD_ENDED = "backward ended"
    GATE = "gate"
    STEP_ENDED = "step ended"
    EVALUATED = "evaluated"


DATA, FORWARD, BACKWARD, OPTIMIZER = "data_time", "forward_time", "backward_time", "optimizer_time"
PARTS = (DATA, FORWARD, BACKWARD, OPTIMIZER)

_ENDS: dict[Mark, tuple[str, frozenset[Mark]]] = {
    Mark.FORWARD_BEGAN: (DATA, frozenset({Mark.STEP_ENDED, Mark.BACKWARD_ENDED, Mark.EVALUATED})),
    Mark.FORWARD_ENDED: (FORWARD, frozenset({Mark.FORWARD_BEGAN})),
    Mark.BACKWARD_ENDED: (BACKWARD, frozenset({Mark.BACKWARD_BEGAN})),
    Mark.STEP_ENDED: (OPTIMIZER, frozenset({Mark.GATE})),
}
"""Which part each mark ends, and which marks may have come right before it."""


class StepSplit:
    """The parts of one or several steps, as far as they were seen."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last: Mark | None = None
        self._when = 0.0

    def mark(self, mark: Mark, when: float) -> None:
        """Take down a moment."""
        last = self._last
        if last is Mark.GATE and mark is not Mark.STEP_ENDED and mark is not Mark.GATE:
            return  # a closure is evaluated again: that is the optimizer's own time
        ends = _ENDS.get(mark)
        if ends is not None and last in ends[1]:
            self.seconds[ends[0]] = self.seconds.get(ends[0], 0.0) + when - self._when
        self._last, self._when = mark, when

    def take(self) -> dict[str, float]:
        """The parts so far; the next ones begin at zero, from where the last mark was."""
        taken, self.seconds = self.seconds, {}
        return taken
