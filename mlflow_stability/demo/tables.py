"""Small networks that learn from tables: regression and classification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, Optimizer

from mlflow_stability.demo.training_loop import Batch, Task, cosine

COLUMNS, CLASSES = 16, 8
STEPS, BATCH = 800, 64
NOISE = 0.3
DEPTH = 8
DATA_SEED = 7  # the data are the same for every seed of a training; those differ in weights and batches


def curve() -> nn.Module:
    """Return the true function of the regression: a fixed random network."""
    torch.manual_seed(DATA_SEED)
    return nn.Sequential(nn.Linear(COLUMNS, 8), nn.Tanh(), nn.Linear(8, 1)).requires_grad_(requires_grad=False)


def regression(seed: int, activation: type[nn.Module], optimizer: type[Optimizer], **settings: Any) -> Task:
    """Predict a noisy number from sixteen others."""
    truth = curve()

    def draw(generator: Generator) -> Batch:
        inputs = torch.randn(BATCH, COLUMNS, generator=generator)
        return inputs, 3.0 * truth(inputs) + NOISE * torch.randn(BATCH, 1, generator=generator)

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


def classes(generator: Generator) -> Batch:
    """Return points around eight centres, with the number of their centre."""
    centres = torch.randn(CLASSES, COLUMNS, generator=torch.Generator().manual_seed(DATA_SEED))
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return centres[labels] + 1.2 * torch.randn(BATCH, COLUMNS, generator=generator), labels


def classification(seed: int) -> Task:
    """Classification with batch norm and momentum."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(COLUMNS, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )
    return _classification_by(model, 0.05, STEPS)


def deep_classification(seed: int) -> Task:
    """Classification by ten layers without normalisation, which need the right initialisation."""
    torch.manual_seed(seed)
    hidden = [nn.Linear(COLUMNS, 64), *(nn.Linear(64, 64) for _ in range(DEPTH))]
    for layer in hidden:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    model = nn.Sequential(*(module for layer in hidden for module in (layer, nn.ReLU())), nn.Linear(64, CLASSES))
    return _classification_by(model, 0.02, STEPS // 2)


def _classification_by(model: nn.Module, lr: float, steps: int) -> Task:
    return Task(
        model,
        SGD(model.parameters(), lr=lr, momentum=0.9),
        steps,
        classes,
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        test=test_batches(classes),
        share_of_lr=cosine(steps),
    )


def test_batches(draw: Callable[[Generator], Batch]) -> tuple[Batch, ...]:
    """Return test batches, the same for every seed."""
    generator = torch.Generator().manual_seed(0)
    return tuple(draw(generator) for _ in range(8))
