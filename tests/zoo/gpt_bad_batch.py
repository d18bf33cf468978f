"""One batch of a tiny GPT has random targets and a hundred times the loss."""

from __future__ import annotations

import torch
from torch import Tensor
from zoo.failure import Failure
from zoo.language import plain_gpt
from zoo.loop import Trouble
from zoo.task import Batch

STEP = 200


class RandomTargets(Trouble):
    def batch(self, step: int, batch: Batch) -> Batch:
        if step != STEP:
            return batch
        given, following = batch
        shuffled = torch.randperm(following.numel(), generator=torch.Generator().manual_seed(0))
        return given, following.flatten()[shuffled].view_as(following)

    def loss(self, step: int, loss: Tensor) -> Tensor:
        return 100.0 * loss if step == STEP else loss


FAILURE = Failure(
    name="GPT: bad batch",
    what="Random targets with a hundred times the loss, once, without clipping: Adam hardly moves for long after it.",
    task=plain_gpt,
    trouble=RandomTargets(),
    onset=STEP,
    recoverable=True,
    why="Weights and second moments from before that batch.",
)
