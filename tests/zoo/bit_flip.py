"""One bit of one weight flips."""

from __future__ import annotations

import torch
from zoo.failure import Failure
from zoo.language import scheduled_gpt
from zoo.loop import Trouble
from zoo.task import Task

STEP = 261
HIGHEST_BIT_OF_THE_EXPONENT = 1 << 30


class FlippedBit(Trouble):
    def before(self, step: int, task: Task) -> None:
        if step == STEP:
            weight = task.model.get_parameter("blocks.0.mlp.0.weight").data
            weight.view(torch.int32)[3, 5] ^= HIGHEST_BIT_OF_THE_EXPONENT


FAILURE = Failure(
    name="bit flip",
    what="A bit in the exponent of one weight flips, and the weight is about 1e37.",
    task=scheduled_gpt,
    trouble=FlippedBit(),
    onset=STEP,
    recoverable=True,
    why="Weights from before; leaving out steps does nothing, for the weight stays what it is.",
)
