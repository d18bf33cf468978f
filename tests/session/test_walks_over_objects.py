"""Python's objects are gone through once, however a training makes and changes its optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import mlflow_stability
from mlflow_stability.probes import model_discovery
from mlflow_stability.probes.performance import progress


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_STABILITY_JOURNAL_DIR", str(tmp_path / "journal"))
    yield
    mlflow_stability.autolog(disable=True)


Step = Callable[[int], None]


def many_optimizers() -> Step:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    optimizers = [torch.optim.SGD(item.parameters(), lr=1e-4) for item in model]

    def step(_: int) -> None:
        model(torch.ones(1, 2)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def an_optimizer_every_five_steps() -> Step:
    model = nn.Linear(2, 1)
    optimizers: list[torch.optim.Optimizer] = []

    def step(number: int) -> None:
        if number % 5 == 0:
            optimizers[:] = [torch.optim.SGD(model.parameters(), lr=1e-4)]
        model(torch.ones(1, 2)).sum().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()

    return step


def an_optimizer_at_every_step() -> Step:
    model = nn.Linear(2, 1)

    def step(_: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def layers_frozen_in_turns() -> Step:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(number: int) -> None:
        model[0].requires_grad_(number % 2 == 0)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def inner_loops() -> Step:
    model = nn.Linear(2, 1)

    def step(_: int) -> None:
        inner = copy.deepcopy(model)
        optimizer = torch.optim.SGD(inner.parameters(), lr=1e-4)
        inner(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("rollback", [False, True], ids=["watched", "rollback"])
@pytest.mark.parametrize(
    "training",
    [many_optimizers, an_optimizer_every_five_steps, an_optimizer_at_every_step, layers_frozen_in_turns, inner_loops],
)
def test_a_training_has_few_walks_over_all_objects(
    monkeypatch: pytest.MonkeyPatch, training: Callable[[], Step], rollback: bool
) -> None:
    walks: list[tuple[type, ...]] = []
    walk = model_discovery._walk
    monkeypatch.setattr(model_discovery, "_walk", lambda kinds: walks.append(kinds) or walk(kinds))
    monkeypatch.setattr(progress, "TRAINERS", ())  # as where no library of trainers was imported
    mlflow_stability.autolog(offline=True, rollback=rollback, layers_every_n_steps=10)
    step = training()
    for number in range(60):
        step(number)
    assert len(walks) <= 3
