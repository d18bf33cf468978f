"""Gradients are never cleared any more."""

from __future__ import annotations

from zoo.failure import Failure
from zoo.loop import Trouble
from zoo.tables import regression_with_momentum

FIRST = 231


class NeverCleared(Trouble):
    """What becomes of ``if step % accumulate == 0: optimizer.zero_grad()`` when the number is wrong."""

    def clears_gradients(self, step: int) -> bool:
        return step < FIRST


FAILURE = Failure(
    name="accumulation bug",
    what="From a step on, gradients are accumulated and never cleared: each step takes all those before it again.",
    task=regression_with_momentum,
    trouble=NeverCleared(),
    onset=FIRST + 1,
    recoverable=False,
    why="Whatever it goes back to, gradients pile up again; the script has to change.",
)
