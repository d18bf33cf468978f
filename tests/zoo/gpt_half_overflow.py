"""A fixed loss scale, and gradients in half precision that overflow from a step on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zoo.failure import Failure
from zoo.language import language_task, tiny_gpt
from zoo.loop import Trouble
from zoo.task import Task

STEP = 200
FITTING, OVERFLOWING = 2.0**12, 2.0**30


class ScaledInHalf(nn.Module):
    """A GPT whose gradients come back through half precision, scaled up before and down behind it, as in a
    mixed-precision training made by hand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gpt = tiny_gpt()
        self.scale = FITTING

    def forward(self, given: Tensor) -> Tensor:
        scores: Tensor = self.gpt(given)
        if scores.requires_grad:
            scale = self.scale
            scores.register_hook(lambda gradient: (gradient * scale).to(torch.float16).float() / scale)
        return scores


def gpt_in_half(seed: int) -> Task:
    return language_task(seed, ScaledInHalf)


class ScaleTooLarge(Trouble):
    def before(self, step: int, task: Task) -> None:
        if step == STEP:
            assert isinstance(task.model, ScaledInHalf)
            task.model.scale = OVERFLOWING


FAILURE = Failure(
    name="GPT: fp16 overflow",
    what="A loss scale made by hand is 2^30 from a step on: every gradient that comes back is infinite.",
    task=gpt_in_half,
    trouble=ScaleTooLarge(),
    onset=STEP,
    recoverable=False,
    why="No step can be taken any more and the scale is a number of the script; it must be said, not hidden by skips.",
)
