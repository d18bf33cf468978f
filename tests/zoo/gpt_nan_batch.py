"""The loss of one batch of a tiny GPT is NaN."""

from __future__ import annotations

import math

from torch import Tensor
from zoo.failure import Failure
from zoo.language import plain_gpt
from zoo.loop import Trouble

STEP = 200


class NaNLoss(Trouble):
    def loss(self, step: int, loss: Tensor) -> Tensor:
        return loss * math.nan if step == STEP else loss


FAILURE = Failure(
    name="GPT: NaN batch",
    what="The loss is NaN at one step.",
    task=plain_gpt,
    trouble=NaNLoss(),
    onset=STEP,
    recoverable=True,
    why="That step left out.",
)
