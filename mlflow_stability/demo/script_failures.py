"""Failures of data and script: a bad batch, a NaN loss, a missing zero_grad(), a wrong loss scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mlflow_stability.demo.language import language_task, plain_gpt, tiny_gpt
from mlflow_stability.demo.tables import regression_with_momentum
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task

STEP = 200
NO_CLEARING_FROM = 231
GOOD_SCALE, HUGE_SCALE = 2.0**12, 2.0**30


class RandomTargets(FailurePoints):
    """One batch has random targets and a hundred times the loss."""

    def batch(self, step: int, batch: Batch) -> Batch:
        if step != STEP:
            return batch
        inputs, targets = batch
        shuffled = torch.randperm(targets.numel(), generator=torch.Generator().manual_seed(0))
        return inputs, targets.flatten()[shuffled].view_as(targets)

    def loss(self, step: int, loss: Tensor) -> Tensor:
        return 100.0 * loss if step == STEP else loss


class NaNLoss(FailurePoints):
    """The loss of one batch is NaN."""

    def loss(self, step: int, loss: Tensor) -> Tensor:
        return loss * math.nan if step == STEP else loss


BAD_BATCH = Failure(
    name="GPT: bad batch",
    what="Random targets with a hundred times the loss, once, without clipping: Adam hardly moves for long after it.",
    task=plain_gpt,
    trouble=RandomTargets(),
    onset=STEP,
    recoverable=True,
    why="Weights and second moments from before that batch.",
    causes=("bad_batch",),
)
NAN_BATCH = Failure(
    name="GPT: NaN batch",
    what="The loss is NaN at one step.",
    task=plain_gpt,
    trouble=NaNLoss(),
    onset=STEP,
    recoverable=True,
    why="That step left out.",
    causes=("bad_batch", "loss_function"),
)


class NeverCleared(FailurePoints):
    """What happens with ``if step % accumulate == 0: optimizer.zero_grad()`` where the number is wrong."""

    def clears_gradients(self, step: int) -> bool:
        return step < NO_CLEARING_FROM


class ScaledInHalf(nn.Module):
    """A GPT whose gradients come back through half precision, scaled as in mixed precision made by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = tiny_gpt()
        self.scale = GOOD_SCALE

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of the next letter."""
        scores: Tensor = self.gpt(inputs)
        if scores.requires_grad:
            scale = self.scale
            scores.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: (gradient * scale).to(torch.float16).float() / scale
            )
        return scores


def gpt_in_half(seed: int) -> Task:
    """Train a GPT with a scale that fits."""
    return language_task(seed, ScaledInHalf)


class ScaleTooLarge(FailurePoints):
    """Sets a scale with which every gradient overflows."""

    def before(self, step: int, task: Task) -> None:
        if step == STEP:
            assert isinstance(task.model, ScaledInHalf)
            task.model.scale = HUGE_SCALE


NO_ZERO_GRAD = Failure(
    name="accumulation bug",
    what="From a step on zero_grad() is missing: each step uses the gradients of all steps before it again.",
    task=regression_with_momentum,
    trouble=NeverCleared(),
    onset=NO_CLEARING_FROM + 1,
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
