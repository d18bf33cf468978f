"""A training that learns all there is to learn ends with tiny losses and gradients, and nothing is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scenarios.flown_history import logged, recorded
from scenarios.flying import flying
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import RunHistory

CLASSES = 10


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 9, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
    )


def perceptron() -> nn.Sequential:
    layers = (nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    return nn.Sequential(nn.Flatten(), *layers)


def separable(spread: float, noise: float) -> Callable[[], tuple[Tensor, Tensor]]:
    """Images around ten centres that lie far apart, with their class."""
    dice = Generator().manual_seed(0)
    centres = spread * torch.randn(CLASSES, 1, 12, 12, generator=dice)

    def batch() -> tuple[Tensor, Tensor]:
        labels = torch.randint(CLASSES, (64,), generator=dice)
        return centres[labels] + noise * torch.randn(64, 1, 12, 12, generator=dice), labels

    return batch


def learn(model: nn.Module, optimizer: Optimizer, batch: Callable[[], tuple[Tensor, Tensor]], steps: int) -> None:
    """Until every label of the last batch is right and next to nothing of the loss is left."""
    for _ in range(steps):
        inputs, labels = batch()
        scores = model(inputs)
        loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-4
    assert (scores.argmax(1) == labels).all()


def convolutions_by_adam() -> None:
    model = convolutions()
    learn(model, Adam(model.parameters(), lr=1e-2), separable(2.0, 1.0), 600)


def perceptron_to_exactly_zero() -> None:
    model = perceptron()
    learn(model, SGD(model.parameters(), lr=0.1, momentum=0.9), separable(5.0, 0.1), 300)


def one_batch_on_purpose() -> None:
    model, batch = perceptron(), separable(5.0, 0.1)()
    learn(model, Adam(model.parameters(), lr=1e-2), lambda: batch, 900)


TRAININGS = (convolutions_by_adam, perceptron_to_exactly_zero, one_batch_on_purpose)


@pytest.mark.slow
@pytest.mark.parametrize("train", TRAININGS, ids=lambda train: str(train.__name__))
def test_what_has_been_learnt_gives_no_warning_live_or_afterwards(train: Callable[[], None], tmp_path: Path) -> None:
    torch.manual_seed(0)
    with flying(tmp_path, layers_every_n_steps=20) as flown:
        train()
    assert [event for event in flown.events() if event.severity > Severity.INFO] == []
    assert serious(recorded(flown)) == []
    assert serious(logged(flown, "loss", "grad_norm", "learning_rate")) == []
    assert diagnosis_of(recorded(flown)).outcome == "healthy"


@pytest.mark.slow
def test_a_network_that_dies_at_the_level_of_chance_is_still_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = convolutions(), separable(2.0, 0.1)
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
    with flying(tmp_path, layers_every_n_steps=20) as flown:
        for _ in range(620):
            inputs, labels = batch()
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    kinds = {event.kind for event in flown.events() if event.severity > Severity.INFO}
    assert {"gradient_vanishing", "dead_layer", "dead_units"} <= kinds


def serious(history: RunHistory) -> list[tuple[str, int, str]]:
    episodes = diagnosis_of(history).findings
    return [(episode.kind, episode.start, episode.message) for episode in episodes if episode.severity > Severity.INFO]
