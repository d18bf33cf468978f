from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam

from mlflow_stability import SPAMAdam
from mlflow_stability.recovery.easing import EasingPlan, reset_moments

MAKERS: dict[str, Callable[[list[torch.nn.Parameter]], Optimizer]] = {
    "Adam": lambda weights: Adam(weights, lr=0.01, amsgrad=True),
    "AdamW": lambda weights: AdamW(weights, lr=0.01),
    "fused AdamW": lambda weights: AdamW(weights, lr=0.01, fused=True),
    "Adamax": lambda weights: Adamax(weights, lr=0.01),
    "NAdam": lambda weights: NAdam(weights, lr=0.01),
    "RAdam": lambda weights: RAdam(weights, lr=0.01),
    "SPAMAdam": lambda weights: SPAMAdam(weights, lr=0.01, reset_every=0),
    "SGD": lambda weights: SGD(weights, lr=0.01, momentum=0.9),
}


def step(optimizer: Optimizer, weight: torch.Tensor, seed: int) -> None:
    weight.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    optimizer.step()


@pytest.mark.parametrize("name", MAKERS)
def test_after_a_reset_an_optimizer_steps_as_a_new_one(name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = MAKERS[name]([weight])
    for seed in range(5):
        step(optimizer, weight, seed)
    addresses = [tensor.data_ptr() for tensor in optimizer.state[weight].values() if isinstance(tensor, torch.Tensor)]
    assert reset_moments(optimizer) > 0
    fresh = torch.nn.Parameter(weight.detach().clone())
    other = MAKERS[name]([fresh])
    for seed in range(5, 9):
        step(optimizer, weight, seed)
        step(other, fresh, seed)
        assert torch.equal(weight, fresh)
    assert addresses == [
        tensor.data_ptr() for tensor in optimizer.state[weight].values() if isinstance(tensor, torch.Tensor)
    ]


def test_the_warm_up_is_the_published_cosine() -> None:
    plan = EasingPlan(start=10, factor=0.01, steps=100, linear=True)
    assert plan.share(10) == pytest.approx(0.01)
    assert plan.share(60) == pytest.approx(0.505)
    assert plan.share(110) == 1.0
