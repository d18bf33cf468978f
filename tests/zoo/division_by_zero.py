"""A mean over a mask that is empty for one batch."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from mlflow_stability.demo.tables import CLASSES, COLUMNS, STEPS, classes, test_batches
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task, cosine

STEP = 431
UNLABELLED = -1


def mean_over_labelled(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    counted = (labels != UNLABELLED).float()
    losses = cross_entropy(model(inputs), labels.clamp(min=0), reduction="none")
    return (losses * counted).sum() / counted.sum()


def partly_labelled(dice: Generator) -> Batch:
    """A third of the rows has no label."""
    inputs, labels = classes(dice)
    labels[torch.rand(len(labels), generator=dice) < 1 / 3] = UNLABELLED
    return inputs, labels


def masked_classification(seed: int) -> Task:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(COLUMNS, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, CLASSES))
    return Task(
        model,
        AdamW(model.parameters(), lr=3e-3),
        STEPS,
        partly_labelled,
        loss=mean_over_labelled,
        test=test_batches(partly_labelled),
        share_of_lr=cosine(STEPS),
    )


class NothingLabelled(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        return (batch[0], torch.full_like(batch[1], UNLABELLED)) if step == STEP else batch


FAILURE = Failure(
    name="division by zero",
    what="One batch has no label at all, and its loss is zero divided by zero.",
    task=masked_classification,
    trouble=NothingLabelled(),
    onset=STEP,
)
