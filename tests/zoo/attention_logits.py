"""Queries and keys learn much too fast for a while; attention then looks at one place for ever after."""

from __future__ import annotations

from zoo.failure import Failure
from zoo.language import scheduled_gpt
from zoo.loop import Trouble
from zoo.task import Task

FIRST, LAST = 261, 280


class WrongGroup(Trouble):
    def before(self, step: int, task: Task) -> None:
        if FIRST <= step <= LAST:
            task.optimizer.param_groups[0]["lr"] *= 100


FAILURE = Failure(
    name="attention logit blow-up",
    what="For twenty steps the queries and keys learn a hundred times too fast; attention then looks at one place.",
    task=scheduled_gpt,
    trouble=WrongGroup(),
    onset=FIRST + 1,
    recoverable=True,
    why="Weights from before; a softmax that is saturated has no gradient to come back by.",
)
