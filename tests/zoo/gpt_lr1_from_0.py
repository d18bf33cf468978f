"""The learning rate of a tiny GPT is 1.0 from the beginning."""

from __future__ import annotations

from zoo.failure import Failure
from zoo.language import plain_gpt
from zoo.loop import Trouble
from zoo.task import Task


class OneFromTheBeginning(Trouble):
    def before(self, step: int, task: Task) -> None:
        if step == 1:
            for group in task.optimizer.param_groups:
                group["lr"] = 1.0


FAILURE = Failure(
    name="GPT: lr 1.0 from 0",
    what="The learning rate of AdamW is 1.0 from the first step on.",
    task=plain_gpt,
    trouble=OneFromTheBeginning(),
    onset=2,
    recoverable=False,
    why="There was never a good state, and the learning rate is simply too high.",
)
