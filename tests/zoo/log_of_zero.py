"""The logarithm of a probability that is zero in single precision."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.optim import Adam

from mlflow_stability.demo.tables import BATCH, COLUMNS, STEPS, curve, test_batches
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task, cosine

STEP = 431
FEW = 8


def hand_made_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """As it is written in textbooks: no care for a probability of exactly 0 or 1."""
    inputs, truth = batch
    probability = torch.sigmoid(model(inputs))
    return -(truth * probability.log() + (1 - truth) * (1 - probability).log()).mean()


def hand_made_loss(seed: int) -> Task:
    truth = curve()

    def draw(dice: Generator) -> Batch:
        inputs = torch.randn(BATCH, COLUMNS, generator=dice)
        noise = 0.2 * torch.randn(BATCH, 1, generator=dice)
        return inputs, (truth(inputs) + noise > 0).float()

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 1))
    return Task(
        model,
        Adam(model.parameters(), lr=3e-3),
        STEPS,
        draw,
        loss=hand_made_cross_entropy,
        test=test_batches(draw),
        share_of_lr=cosine(STEPS),
    )


class OutliersOfTheOtherClass(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        inputs, truth = batch
        if step == STEP:
            inputs[:FEW] *= 100.0
            truth[:FEW] = 1.0 - truth[:FEW]
        return inputs, truth


FAILURE = Failure(
    name="log(0) loss",
    what="Far outliers with wrong labels: a probability is 0 in single precision, and its logarithm infinite.",
    task=hand_made_loss,
    trouble=OutliersOfTheOtherClass(),
    onset=STEP,
)
