"""Options that make steps smaller: held against the same arithmetic, done by hand without a recording."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.flying import Flown, flying
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import AdamW

from mlflow_stability import RollbackPolicy
from mlflow_stability.recovery.easing import EasingPlan
from mlflow_stability.vocabulary.rollback_policy import ActAhead

STEPS, STRANGE, RATE, WARM_UP = 240, 150, 1e-3, 40
BeforeStep = Callable[[int, AdamW], float]
"""What is done by hand before a step; gives the share of the learning rate."""


def plainly(step: int, optimizer: AdamW) -> float:
    return 1.0


def rate_of(step: int) -> float:
    """As a schedule writes it, again for each step."""
    return RATE * (1 - step / 1000)


def train(times: dict[int, float], by_hand: BeforeStep | None = None) -> tuple[list[Tensor], list[float], AdamW]:
    """Train with some losses multiplied; gives weights, the learning rates that the script sees, and the optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = AdamW(model.parameters(), lr=RATE)
    seen = []
    for step in range(1, STEPS + 1):
        inputs = torch.randn(32, 8)
        loss = times.get(step, 1.0) * (model(inputs) - inputs[:, :1].sin()).square().mean()
        share = 1.0 if by_hand is None else by_hand(step, optimizer)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step) * share
        optimizer.zero_grad()
        loss.backward()
        if by_hand is None or math.isfinite(times.get(step, 1.0)):
            optimizer.step()
        seen.append(optimizer.param_groups[0]["lr"])
    return [parameter.detach().clone() for parameter in model.parameters()], seen, optimizer


def flown(folder: Path, times: dict[int, float], **options: Any) -> tuple[Flown, list[Tensor]]:
    policy = RollbackPolicy(max_rollbacks=0, skip_gradients_above=None, **options)
    with flying(folder, rollback=policy) as flight:
        weights, seen, _ = train(times)
    assert seen == [rate_of(step) for step in range(1, STEPS + 1)]
    return flight, weights


def must_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.slow
def test_a_spike_resets_the_moments_and_a_warm_up_follows(tmp_path: Path) -> None:
    flight, weights = flown(tmp_path, {STRANGE: 500.0}, reset_at_spike=True, reset_warm_up=WARM_UP)
    (event,) = flight.events("smaller_steps")
    assert "Reset 8 tensors of optimizer moments" in event.message
    assert event.step in (STRANGE, STRANGE + 1)
    plan = EasingPlan(event.step + 1, 0.01, WARM_UP, linear=True)

    def by_hand(step: int, optimizer: AdamW) -> float:
        if step == event.step + 1:
            optimizer.state.clear()  # AdamW begins again where its state is empty
        return plan.share(step) if step > event.step else 1.0

    must_equal(weights, train({STRANGE: 500.0}, by_hand)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "options"),
    [
        ({}, {"reset_at_spike": True, "cut_learning_rate": 0.1, "act_ahead": "ease"}),
        ({STRANGE: 500.0}, {}),
        ({STRANGE: 500.0}, {"cut_learning_rate": 0.1}),
    ],
)
def test_nothing_changes_without_the_option_or_its_reason(
    times: dict[int, float], options: dict[str, Any], tmp_path: Path
) -> None:
    flight, weights = flown(tmp_path, times, **options)
    assert not flight.events("smaller_steps")
    must_equal(weights, train(times, plainly)[0])


@pytest.mark.slow
def test_the_first_broken_step_cuts_the_learning_rate_and_later_ones_do_not(tmp_path: Path) -> None:
    broken = {STRANGE: math.nan, STRANGE + 30: math.nan}
    flight, weights = flown(tmp_path, broken, cut_learning_rate=0.1)
    (event,) = flight.events("smaller_steps")
    assert event.message.startswith("Learning rate limited to 0.1 times its scheduled value")
    assert event.step == STRANGE
    must_equal(weights, train(broken, lambda step, _: 0.1 if step > STRANGE else 1.0)[0])


def creeping(*, times: float = 1.02) -> list[Tensor]:
    """The learning rate creeps up, and the weights run away before the loss does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = AdamW(model.parameters(), lr=RATE)
    for step in range(1, 401):
        inputs = torch.randn(32, 8)
        optimizer.param_groups[0]["lr"] = RATE * times ** max(0, step - 150)
        optimizer.zero_grad()
        (model(inputs) - inputs[:, :1].sin()).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("act", ["checkpoint", "ease"])
def test_an_early_sign_of_divergence_writes_a_checkpoint_and_may_ease(act: ActAhead, tmp_path: Path) -> None:
    policy = RollbackPolicy(max_rollbacks=0, act_ahead=act)
    with flying(tmp_path, rollback=policy) as flight:
        weights = creeping()
    sign, event = flight.events("divergence_ahead")[0], flight.events("smaller_steps")[0]
    assert event.step - sign.step in (0, 1)
    assert f"Wrote a checkpoint of step {event.step}." in event.message
    assert [path for path in tmp_path.rglob("state.pt") if f"{event.step}" in path.parent.name]
    same = all(torch.equal(mine, other) for mine, other in zip(weights, creeping(), strict=True))
    assert same == (act == "checkpoint")
    assert ("Learning rate starts at 0.5 times" in event.message) == (act == "ease")


@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("interval", [1, 5])
def test_a_loss_scale_stays_below_its_limit_and_the_training_as_it_is(
    interval: int, optimizers: int, tmp_path: Path
) -> None:
    def train_scaled() -> tuple[list[Tensor], list[float]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        parts = [model.parameters()] if optimizers == 1 else [model[0].parameters(), model[2].parameters()]
        every = [AdamW(part, lr=RATE) for part in parts]
        scaler, scales = GradScaler("cpu", init_scale=2.0**16, growth_interval=interval), []
        for _ in range(60):
            inputs = torch.randn(32, 8)
            scaler.scale((model(inputs) - inputs[:, :1].sin()).square().mean()).backward()
            scales.append(float(scaler.get_scale()))
            for optimizer in every:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
        return [parameter.detach().clone() for parameter in model.parameters()], scales

    with flying(tmp_path, rollback=RollbackPolicy(max_rollbacks=0, largest_scale=2.0**14)):
        weights, scales = train_scaled()
    assert max(scales[2:]) == 2.0**14
    bare, free = train_scaled()
    assert max(free) > 2.0**16
    must_equal(weights, bare)
