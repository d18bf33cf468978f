"""Failures of the data: a bad batch, a batch whose loss is NaN."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlflow_stability.demo.tasks.failure import Failure
from mlflow_stability.demo.tasks.language import plain_gpt
from mlflow_stability.demo.tasks.loop import FailurePoints
from mlflow_stability.demo.tasks.task import Batch

STEP = 200


class RandomTargets(FailurePoints):
    """One batch has random targets and a hundred times the loss."""

    def batch(self, step: int, batch: Batch) -> Batch:
        """The batch of a step."""
        if step != STEP:
            return batch
        given, following = batch
        shuffled = torch.randperm(following.numel(), generator=torch.Generator().manual_seed(0))
        return given, following.flatten()[shuffled].view_as(following)

    def loss(self, step: int, loss: Tensor) -> Tensor:
        """The loss of a step."""
        return 100.0 * loss if step == STEP else loss


class NaNLoss(FailurePoints):
    """The loss of one batch is NaN."""

    def loss(self, step: int, loss: Tensor) -> Tensor:
        """The loss of a step."""
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
