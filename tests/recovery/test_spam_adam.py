from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recovery.guarded_training import differences, picture
from torch import Tensor, nn
from torch.optim import Optimizer

from mlflow_stability.errors import SettingsError
from mlflow_stability.recovery.spam_adam import SPAMAdam


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def train(model: nn.Module, optimizer: Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def test_without_spikes_and_resets_it_is_adam() -> None:
    first, other = model_of(), model_of()
    train(first, SPAMAdam(first.parameters(), lr=0.01, weight_decay=0.1, reset_every=0, threshold=1e30), 50)
    train(other, torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.1), 50)
    for mine, theirs in zip(first.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", ["coordinate", "norm"])
def test_one_tensor_at_a_time_and_all_together_are_bit_identical(clip: Any) -> None:
    first, other = model_of(), model_of()
    train(first, SPAMAdam(first.parameters(), lr=0.01, clip=clip, reset_every=20, warm_up=5, foreach=False), 50)
    train(other, SPAMAdam(other.parameters(), lr=0.01, clip=clip, reset_every=20, warm_up=5), 50)
    assert differences(picture(first), picture(other)) == []


def first_step_after(optimizer_of: Callable[[list[Tensor]], Optimizer], gradients: list[float]) -> dict[str, Tensor]:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = optimizer_of([weight])
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
    return dict(optimizer.state[weight]) | {"weight": weight.detach()}


def test_a_coordinate_is_clipped_where_its_square_is_above_the_threshold_times_the_second_moment() -> None:
    gradients = [1.0] * 10 + [1e6]
    state = first_step_after(lambda p: SPAMAdam(p, threshold=100.0, betas=(0.9, 0.99)), gradients)
    second = torch.tensor(1 - 0.99**10, dtype=torch.float64) * 0.99 + 0.01 * 100.0  # 10 is the root of 100 x 1
    torch.testing.assert_close(state["exp_avg_sq"], second.reshape(1))


def test_a_gradient_below_the_threshold_passes_unchanged() -> None:
    gradients = [1.0] * 10 + [9.0]
    kept = first_step_after(lambda p: SPAMAdam(p, threshold=100.0), gradients)
    free = first_step_after(lambda p: SPAMAdam(p, threshold=1e30), gradients)
    assert differences(kept, free) == []


def test_a_coordinate_that_has_had_no_gradient_yet_is_not_held_at_zero() -> None:
    state = first_step_after(lambda p: SPAMAdam(p), [0.0] * 20 + [1.0])
    assert float(state["exp_avg"]) == pytest.approx(0.1)


def test_both_moments_are_reset_at_regular_intervals_and_the_rate_warms_up() -> None:
    moved = []
    weight = nn.Parameter(torch.zeros(1))
    optimizer = SPAMAdam([weight], lr=1.0, reset_every=20, warm_up=10, eps=0.0)
    for _ in range(45):
        before = weight.detach().clone()
        weight.grad = torch.ones(1)
        optimizer.step()
        moved.append(float(before - weight.detach()))
    # With equal gradients Adam moves by just the learning rate.
    assert moved[:20] == pytest.approx([1.0] * 20, rel=1e-4)
    assert moved[20] == pytest.approx(0.0342, abs=1e-3)
    assert moved[20:31] == sorted(moved[20:31])
    assert moved[30:40] == pytest.approx([1.0] * 10, rel=1e-4)
    assert moved[40] == pytest.approx(moved[20], rel=1e-3)


def test_the_norm_of_a_tensor_is_held_to_a_multiple_of_its_usual_one() -> None:
    state = first_step_after(lambda p: SPAMAdam(p, clip="norm", norm_threshold=4.0), [1.0] * 30 + [1e9])
    assert float(state["exp_avg"]) == pytest.approx(0.9 * (1 - 0.9**30) + 0.1 * 4.0)
    assert float(state["usual_norm"]) < 2.0


@pytest.mark.parametrize("clip", ["coordinate", "norm"])
def test_after_saving_and_loading_it_continues_bit_identically(clip: Any) -> None:
    model = model_of()
    optimizer = SPAMAdam(model.parameters(), lr=0.01, clip=clip, reset_every=8, warm_up=4)
    train(model, optimizer, 11)
    other = copy.deepcopy(model)
    again = SPAMAdam(other.parameters())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 11, first=11)
    train(other, again, 11, first=11)
    assert differences(picture(model, optimizer), picture(other, again)) == []


def test_it_leaves_gradients_alone_and_touches_no_parameter_without_one() -> None:
    first, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = SPAMAdam([first, other])
    for number in (1.0, 1.0, 1e9):
        first.grad = torch.full((2,), number)
        optimizer.step()
    assert first.grad.tolist() == [1e9, 1e9]
    assert other.tolist() == [1.0, 1.0]
    assert other not in optimizer.state


def test_it_works_with_schedulers_closures_groups_and_half_precision() -> None:
    matrix = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    vector = nn.Parameter(torch.ones(2))
    optimizer = SPAMAdam([{"params": [matrix], "lr": 0.1}, {"params": [vector]}], lr=0.01, maximize=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def closure() -> float:
        optimizer.zero_grad()
        loss = matrix.float().sum() + vector.sum()
        loss.backward()
        return float(loss.detach())

    losses = []
    for _ in range(5):
        losses.append(optimizer.step(closure))
        schedule.step()
    assert losses == sorted(losses)
    assert matrix.dtype is optimizer.state[matrix]["exp_avg"].dtype is torch.bfloat16


@pytest.mark.parametrize(
    "wrong",
    [
        *({"lr": -1.0}, {"lr": "0.1"}, {"lr": None}, {"betas": (1.0, 0.9)}, {"betas": 0.9}, {"eps": "small"}),
        *({"threshold": 0.5}, {"reset_every": -1}, {"reset_every": 1.5}, {"clip": "both"}, {"clip": None}),
        *({"foreach": "yes"}, {"maximize": 1}, {"norm_decay": [0.9]}, {"weight_decay": float("nan")}),
    ],
)
def test_invalid_arguments_are_refused(wrong: dict[str, Any]) -> None:
    ((name, _),) = wrong.items()
    with pytest.raises(SettingsError, match=rf"^{name} must be .*; got .*\."):
        SPAMAdam([nn.Parameter(torch.ones(1))], **wrong)


def test_the_error_for_a_misspelt_argument_suggests_the_right_one() -> None:
    with pytest.raises(
        SettingsError, match=r"^SPAMAdam\(\) has no argument 'reset_evry'. Did you mean 'reset_every'\?$"
    ):
        SPAMAdam([nn.Parameter(torch.ones(1))], reset_evry=3)  # type: ignore[call-arg]


def test_a_learning_rate_that_is_a_tensor_stays_one() -> None:
    rate = torch.tensor(0.1)
    assert SPAMAdam([nn.Parameter(torch.ones(1))], lr=rate).param_groups[0]["lr"] is rate


def losses_around_a_spike(optimizer_of: Callable[[Any], Optimizer]) -> tuple[float, float]:
    """The loss before a batch that is far too large, and two hundred steps after it."""
    model = model_of()
    optimizer = optimizer_of(model.parameters())
    losses = []
    for step in range(400):
        inputs = torch.randn(32, 6, generator=torch.Generator().manual_seed(step))
        target = inputs.sum(1, keepdim=True) * (1e5 if step == 200 else 1.0)
        optimizer.zero_grad()
        loss = (model(inputs) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[180:200]) / 20, sum(losses[380:]) / 20


@pytest.mark.slow
def test_it_keeps_learning_after_a_spike_that_stalls_adam() -> None:
    before, after = losses_around_a_spike(lambda p: SPAMAdam(p, lr=0.01))
    adam_before, adam_after = losses_around_a_spike(lambda p: torch.optim.Adam(p, lr=0.01))
    assert after < before
    assert adam_after > 2 * adam_before
