"""Trainings whose loss rises though their weights are not worse are rolled back twice at most, and go on."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from scenarios.flying import QUICK, Flown, flying
from torch import nn
from torch.optim import AdamW

from mlflow_stability.vocabulary.result import Severity

pytestmark = pytest.mark.scenario


def replaced_weights(steps: int, every: int, factor: float, rate: float) -> float:
    """Other code replaces the weights every `every` steps, some by this factor too large; mean of the last losses."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    others = copy.deepcopy(model.state_dict())
    others["2.weight"] *= factor
    optimizer, losses = AdamW(model.parameters(), lr=rate), []
    for step in range(1, steps + 1):
        inputs = torch.randn(64, 8, generator=dice)
        targets = inputs[:, :1].sin() + inputs[:, 1:2] + 0.2 * torch.randn(64, 1, generator=dice)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % every == 0:
            model.load_state_dict(others)
    return sum(losses[-40:]) / 40


@pytest.mark.slow
def test_weights_that_are_replaced_periodically_are_not_rolled_back_a_third_time(tmp_path: Path) -> None:
    bare = replaced_weights(1190, 300, 60.0, 0.01)
    with flying(tmp_path, rollback=QUICK) as flown:
        rolled_back = replaced_weights(1190, 300, 60.0, 0.01)
    assert len(flown.events("rollback")) == 2
    (event,) = flown.events("give_up")
    assert event.severity is Severity.WARNING
    assert "The loss rises about every 300 steps" in event.message
    assert rolled_back < 1.2 * bare


@pytest.mark.slow
def test_replaced_weights_from_which_the_loss_falls_within_twenty_steps_are_not_rolled_back(tmp_path: Path) -> None:
    bare = replaced_weights(690, 300, 20.0, 0.03)
    with flying(tmp_path, rollback=QUICK) as flown:
        watched = replaced_weights(690, 300, 20.0, 0.03)
    assert flown.events("divergence"), "they were found"
    assert watched == bare


def growing_targets(folder: Path, rollback: bool) -> tuple[Flown, float]:
    """The scale of the targets grows, as returns do: the loss rises, and no weights are worse than older ones."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with flying(folder, rollback=QUICK if rollback else False) as flown:
        for step in range(1500):
            scale = 1.0 + max(0, step - 200) ** 2 / 2e4
            inputs = torch.randn(64, 8, generator=dice)
            noise = 0.5 * torch.randn(64, 1, generator=dice)
            loss = nn.functional.mse_loss(model(inputs), scale * (inputs[:, :1].sin() + noise))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    inputs = torch.randn(1024, 8, generator=dice)
    with torch.no_grad():
        return flown, nn.functional.mse_loss(model(inputs), scale * inputs[:, :1].sin()).item()


@pytest.mark.slow
def test_a_loss_that_rises_because_its_targets_grow_is_rolled_back_twice_at_most(tmp_path: Path) -> None:
    _, watched = growing_targets(tmp_path / "watched", rollback=False)
    flown, end = growing_targets(tmp_path / "rollback", rollback=True)
    undone = [event for event in flown.events("rollback") if "steps_regained" in event.metrics]
    assert len(undone) == 2
    assert len(flown.events("rollback")) == 4
    (event,) = flown.events("give_up")
    assert event.severity is Severity.INFO
    assert "This loss rises without its weights being worse" in event.message
    assert end < 1.1 * watched
