"""The halves of a GAN are rolled back together, between two iterations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scenarios.flying import QUICK, Flown, flying
from torch import Tensor, nn
from torch.optim import Adam

from mlflow_stability.vocabulary.measured.signal import StepReading

pytestmark = pytest.mark.scenario


def gan(
    folder: Path, iterations: int, of_critic: int = 1, jump: int = 150
) -> tuple[Flown, list[tuple[Tensor, Tensor]]]:
    """A small GAN whose discriminator's learning rate jumps, and the weights of both after each iteration."""
    torch.manual_seed(0)
    maker, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    makes, judges = Adam(maker.parameters(), lr=1e-3), Adam(critic.parameters(), lr=1e-3)
    softplus = nn.functional.softplus
    seen = []
    with flying(folder, rollback=QUICK) as flown:
        for number in range(iterations):
            for group in judges.param_groups:
                group["lr"] = 30.0 if jump <= number < jump + 20 else 1e-3
            for _ in range(of_critic):
                fake = maker(torch.randn(64, 4)).detach()
                judges.zero_grad()
                (softplus(-critic(torch.randn(64, 2) + 2)).mean() + softplus(critic(fake)).mean()).backward()
                judges.step()
            makes.zero_grad()
            softplus(-critic(maker(torch.randn(64, 4)))).mean().backward()
            makes.step()
            seen.append((critic[0].weight.detach().clone(), maker.weight.detach().clone()))
    return flown, seen


@pytest.mark.slow
@pytest.mark.parametrize("of_critic", [1, 3])
def test_as_many_iterations_as_steps_and_both_halves_of_the_same_one(of_critic: int, tmp_path: Path) -> None:
    flown, seen = gan(tmp_path, 260 // of_critic, of_critic, 150 // of_critic)
    backs = flown.events("rollback")
    assert backs
    readings = [record for record in flown.records if isinstance(record, StepReading)]
    assert max(reading.step for reading in readings) == 260 // of_critic * of_critic
    for back in backs:
        assert back.step % of_critic == 0, "a rollback in the middle of an iteration"
        target = int(back.metrics["target"])
        assert target % of_critic == 0
        here, there = seen[back.step // of_critic - 1], seen[target // of_critic - 1]
        assert all(map(torch.equal, here, there))
    halves = {signal.place for reading in readings for signal in reading.signals if signal.quantity == "loss"}
    assert len(halves) == 2
