"""Weight decay is a thousand times too strong for twenty steps."""

from __future__ import annotations

from zoo.failure import Failure
from zoo.language import scheduled_gpt
from zoo.loop import Trouble
from zoo.task import Task

FIRST, LAST = 261, 280


class TooStrongForAWhile(Trouble):
    def before(self, step: int, task: Task) -> None:
        if step in (FIRST, LAST + 1):
            for group in task.optimizer.param_groups:
                group["weight_decay"] *= 1e4 if step == FIRST else 1e-4


FAILURE = Failure(
    name="weight decay gone wrong",
    what="Weight decay is 100 for twenty steps: the weights shrink to a few per cent.",
    task=scheduled_gpt,
    trouble=TooStrongForAWhile(),
    onset=FIRST + 1,
    recoverable=True,
    why="Weights from before; it must be done again where the first time came too early.",
)
