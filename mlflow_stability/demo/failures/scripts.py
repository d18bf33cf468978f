"""Failures of the script: gradients that are never cleared, a loss scale made by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mlflow_stability.demo.tasks.failure import Failure
from mlflow_stability.demo.tasks.language import language_task, tiny_gpt
from mlflow_stability.demo.tasks.loop import FailurePoints
from mlflow_stability.demo.tasks.tables import regression_with_momentum
from mlflow_stability.demo.tasks.task import Task

FIRST = 231
STEP = 200
FITTING, OVERFLOWING = 2.0**12, 2.0**30


class NeverCleared(FailurePoints):
    """What happens with ``if step % accumulate == 0: optimizer.zero_grad()`` where the number is wrong."""

    def clears_gradients(self, step: int) -> bool:
        """Whether the gradients are cleared after a step."""
        return step < FIRST


class ScaledInHalf(nn.Module):
    """A GPT whose gradients come back through half precision, scaled as in mixed precision made by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = tiny_gpt()
        self.scale = FITTING

    def forward(self, given: Tensor) -> Tensor:
        """The scores of every letter."""
        scores: Tensor = self.gpt(given)
        if scores.requires_grad:
            scale = self.scale
            scores.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: (gradient * scale).to(torch.float16).float() / scale
            )
        return scores


def gpt_in_half(seed: int) -> Task:
    """With a scale that fits."""
    return language_task(seed, ScaledInHalf)


class ScaleTooLarge(FailurePoints):
    """Sets a scale with which every gradient overflows."""

    def before(self, step: int, task: Task) -> None:
        """Runs before the step."""
        if step == STEP:
            assert isinstance(task.model, ScaledInHalf)
            task.model.scale = OVERFLOWING


NO_ZERO_GRAD = Failure(
    name="accumulation bug",
    what="From a step on zero_grad() is missing: each step uses the gradients of all steps before it again.",
    task=regression_with_momentum,
    trouble=NeverCleared(),
    onset=FIRST + 1,
    recoverable=False,
    why="After a rollback gradients accumulate again; the script has to change.",
    causes=("gradients_not_cleared",),
)
HALF_OVERFLOW = Failure(
    name="GPT: fp16 overflow",
    what="A loss scale made by hand is 2^30 from a step on: every gradient that comes back is infinite.",
    task=gpt_in_half,
    trouble=ScaleTooLarge(),
    onset=STEP,
    recoverable=False,
    why="No step can be taken any more and the scale is a number of the script; it must be said, not hidden by skips.",
    causes=("gradient_non_finite", "fp16_scale", "overflow"),
)
