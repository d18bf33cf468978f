"""Optimizers that evaluate a closure are eased before they read their learning rate, and the closure never sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scenarios.flying import QUICK, Flown, flying
from torch import Tensor, nn
from torch.optim import LBFGS, Adam, Optimizer

from mlflow_stability import RollbackPolicy
from mlflow_stability.vocabulary.measured.signal import StepReading

pytestmark = pytest.mark.scenario
Make = Callable[[list[nn.Parameter]], Optimizer]


def train(make: Make, factor: float = 1.0, steps: int = 160, start: float = 1.0) -> tuple[list[float], set[float]]:
    """Losses on the whole data after each step, and the learning rates that the closure saw before the jump."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 10, generator=dice)
    targets = (2 * inputs[:, :1]).sin() + 0.1 * torch.randn(256, 1, generator=dice)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(start)
    optimizer = make(list(model.parameters()))
    rate, seen, losses = optimizer.param_groups[0]["lr"], set(), []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (factor if step >= 100 else 1.0)
        chosen = torch.randint(0, 256, (64,), generator=dice)

        def closure(chosen: Tensor = chosen) -> Tensor:
            seen.add(optimizer.param_groups[0]["lr"] / rate)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs[chosen]), targets[chosen])
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            losses.append(nn.functional.mse_loss(model(inputs), targets).item())
    return losses, seen


def lbfgs(parameters: list[nn.Parameter]) -> Optimizer:
    return LBFGS(parameters, lr=0.1, max_iter=4)


def used_rates(flown: Flown) -> dict[int, float]:
    readings = [record for record in flown.records if isinstance(record, StepReading)]
    values = {reading.step: dict(zip(map(str, reading.signals), reading.values, strict=True)) for reading in readings}
    return {step: row["learning_rate_used"] for step, row in values.items() if "learning_rate_used" in row}


@pytest.mark.slow
@pytest.mark.parametrize("make", [lbfgs, lambda parameters: Adam(parameters, lr=0.005)], ids=["LBFGS", "Adam"])
def test_a_jump_of_the_learning_rate_is_survived_and_the_closure_sees_the_rate_of_the_script(
    make: Make, tmp_path: Path
) -> None:
    with flying(tmp_path, rollback=QUICK) as flown:
        losses, seen = train(make, 300.0)
    back = flown.events("rollback")[0]
    assert losses[-1] < 0.65 * losses[0]
    assert seen == {1.0, 300.0}
    used = used_rates(flown)
    assert used[back.step + 1] == pytest.approx(back.metrics["learning_rate"])


def test_lbfgs_that_is_too_fast_from_the_first_step_on_takes_the_smaller_steps_that_are_announced(
    tmp_path: Path,
) -> None:
    def fast(parameters: list[nn.Parameter]) -> Optimizer:
        return LBFGS(parameters, lr=3.0, max_iter=4)

    with flying(tmp_path, rollback=RollbackPolicy(snapshot_share=1.0)) as flown:
        losses, _ = train(fast, steps=60, start=8.0)
    backs = flown.events("rollback")
    assert backs
    first = backs[0].step
    assert losses[first : first + 5] != losses[:5], "the same steps would diverge again"
    assert flown.events("give_up") == []
    assert losses[-1] < losses[0]


def test_without_a_rollback_the_closure_runs_as_ever(tmp_path: Path) -> None:
    bare, _ = train(lbfgs, steps=40)
    with flying(tmp_path, rollback=QUICK):
        assert train(lbfgs, steps=40)[0] == bare
