"""A normalisation meets a row without variance."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam

from mlflow_stability.demo.tables import CLASSES, COLUMNS, STEPS, classes, test_batches
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task, cosine

STEP = 431


class HandMadeNorm(nn.Module):
    """A layer norm as it is often written; the slope of the root is infinite where the variance is zero."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-5)


def hand_made_norm(seed: int) -> Task:
    torch.manual_seed(seed)
    first = nn.Linear(COLUMNS, 64, bias=False)
    model = nn.Sequential(first, HandMadeNorm(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, CLASSES))
    return Task(
        model,
        Adam(model.parameters(), lr=3e-3),
        STEPS,
        classes,
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        test=test_batches(classes),
        share_of_lr=cosine(STEPS),
    )


class EmptyRecord(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        if step == STEP:
            batch[0][5] = 0.0
        return batch


FAILURE = Failure(
    name="zero-variance norm",
    what="An empty record goes through a hand-made layer norm: the loss is finite, its gradients are NaN.",
    task=hand_made_norm,
    trouble=EmptyRecord(),
    onset=STEP,
)
