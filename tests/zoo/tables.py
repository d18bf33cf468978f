"""Small networks that learn from tables: regression by two optimizers, and classification."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, Adam, Optimizer
from zoo.schedules import cosine
from zoo.task import Batch, Task

COLUMNS, CLASSES = 16, 8
STEPS, BATCH = 800, 64
NOISE = 0.3
WORLD = 7
"""What is to be learned is the same for every seed; seeds differ in weights and batches."""


def curve() -> nn.Module:
    """What the numbers in the last column of the table depend on: a fixed random network."""
    torch.manual_seed(WORLD)
    return nn.Sequential(nn.Linear(COLUMNS, 8), nn.Tanh(), nn.Linear(8, 1)).requires_grad_(requires_grad=False)


def regression(seed: int, activation: type[nn.Module], optimizer: type[Optimizer], **settings: float) -> Task:
    """A noisy number to be told from sixteen others."""
    truth = curve()

    def draw(dice: Generator) -> Batch:
        inputs = torch.randn(BATCH, COLUMNS, generator=dice)
        return inputs, 3.0 * truth(inputs) + NOISE * torch.randn(BATCH, 1, generator=dice)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(COLUMNS, 64), activation(), nn.Linear(64, 64), activation(), nn.Linear(64, 1))
    return Task(
        model,
        optimizer(model.parameters(), **settings),
        STEPS,
        draw,
        loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]),
        test=test_batches(draw),
        share_of_lr=cosine(STEPS),
    )


def regression_with_momentum(seed: int) -> Task:
    return regression(seed, nn.Tanh, SGD, lr=0.03, momentum=0.9)


def regression_with_adam(seed: int) -> Task:
    return regression(seed, nn.ReLU, Adam, lr=3e-3)


def classes(dice: Generator) -> Batch:
    """Points around eight centres, with the number of their centre."""
    centres = torch.randn(CLASSES, COLUMNS, generator=torch.Generator().manual_seed(WORLD))
    labels = torch.randint(CLASSES, (BATCH,), generator=dice)
    return centres[labels] + 1.2 * torch.randn(BATCH, COLUMNS, generator=dice), labels


def classification(seed: int) -> Task:
    """With batch norm and momentum."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(COLUMNS, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )
    return Task(
        model,
        SGD(model.parameters(), lr=0.05, momentum=0.9),
        STEPS,
        classes,
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        test=test_batches(classes),
        share_of_lr=cosine(STEPS),
    )


def test_batches(draw: Callable[[Generator], Batch]) -> tuple[Batch, ...]:
    dice = torch.Generator().manual_seed(0)
    return tuple(draw(dice) for _ in range(8))
