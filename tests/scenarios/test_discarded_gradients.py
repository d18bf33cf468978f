"""Gradients that are cleared between the backward passes of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scenarios.flying import flying
from torch import Tensor, nn

from mlflow_stability.vocabulary.result import Severity

PASSES = 4
MISTAKES = ("cleared", "cleared by the module", "cleared and clipped")
NEIGHBOURS = (
    "accumulated",
    "a loss that nothing divides",
    "shares of a weighted sum",
    "gradients set by the script",
    "gradients overwritten in place",
    "clipped one by one and put together",
    "adversarial inputs",
    "twice in a step",
)


def train(how: str, steps: int = 12) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())

    def backward(share: float, *, x: Tensor | None = None) -> None:
        x = torch.randn(16, 8) if x is None else x
        (nn.functional.mse_loss(model(x), x.detach().sum(1, keepdim=True)) * share).backward()

    for _ in range(steps):
        kept: list[list[Tensor]] = []
        for place in range(PASSES):
            if how == "cleared by the module":
                model.zero_grad()
            elif how != "accumulated" or not place:
                optimizer.zero_grad()
            if how == "adversarial inputs":
                backward(1.0, x=torch.randn(16, 8, requires_grad=True))
            elif how == "shares of a weighted sum":
                backward((0.1, 0.2, 0.3, 0.4)[place])
            else:
                backward(1.0 if how == "a loss that nothing divides" else 1 / PASSES)
            if how == "clipped one by one and put together" or (how == "cleared and clipped" and place == PASSES - 1):
                nn.utils.clip_grad_norm_(parameters, 1.0)
            kept.append([parameter.grad.clone() for parameter in parameters if parameter.grad is not None])
        sums = [torch.stack(parts).sum(0) for parts in zip(*kept, strict=True)]
        if how == "twice in a step":  # a norm of each micro-batch first, and then the sum
            optimizer.zero_grad()
            for _ in range(PASSES):
                backward(1 / PASSES)
        for parameter, value in zip(parameters, sums, strict=True):
            if how == "gradients set by the script":
                parameter.grad = value
            elif how in ("gradients overwritten in place", "clipped one by one and put together"):
                assert parameter.grad is not None
                parameter.grad.copy_(value)
        optimizer.step()


@pytest.mark.parametrize("how", [*MISTAKES, *NEIGHBOURS])
def test_gradients_of_micro_batches_that_never_reach_a_step_are_found(tmp_path: Path, how: str) -> None:
    with flying(tmp_path) as flown:
        train(how)
    message = (
        "Each step has 4 backward passes from losses that are divided by 4, and gradients are cleared between them: "
        "only those of the last one are used."
    )
    events = [(event.step, event.severity, event.message) for event in flown.events("gradients_discarded")]
    assert events == ([(4, Severity.WARNING, message)] if how in MISTAKES else [])


class Gan:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.generator, self.critic = nn.Linear(4, 2), nn.Linear(2, 1)
        self.of_generator = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=0.01)

    def step(self, number: int, how: str) -> None:
        fake = self.generator(torch.randn(16, 4))
        if how != "not cleared":
            self.of_critic.zero_grad()
        if how != "begins later":
            (self.critic(torch.randn(16, 2)).mean() - self.critic(fake.detach()).mean()).backward()
        if how == "alternates" and number % 7 == 3:
            self.of_critic.step()
        self.of_generator.zero_grad()
        self.critic.requires_grad_(how != "begins later")
        self.critic(fake).mean().backward()
        self.of_generator.step()


@pytest.mark.parametrize("how", ["never stepped", "alternates", "not cleared", "begins later"])
def test_an_optimizer_that_is_cleared_but_never_stepped_is_information(tmp_path: Path, how: str) -> None:
    with flying(tmp_path) as flown:
        gan = Gan()
        for number in range(105):
            gan.step(number, how)
    events = [(event.step, event.severity, event.message) for event in flown.events("not_optimized")]
    message = (
        "2 parameters of Linear_1 (23% of the values): gradients are computed, but their Adam took no step up to step "
        "100."
    )
    assert events == ([(100, Severity.INFO, message)] if how == "never stepped" else [])


@pytest.mark.parametrize("again", [True, False])
def test_an_optimizer_that_is_made_again_is_a_change_of_the_configuration(tmp_path: Path, again: bool) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        for epoch in range(3):
            if again or not epoch:
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(25):
                optimizer.zero_grad()
                model(torch.randn(16, 4)).square().mean().backward()
                optimizer.step()
    events = [(event.step, event.message) for event in flown.events("configuration_changed")]
    message = "The number of optimizers that were made of the same parameters changed from {} to {}, seen at step {}."
    assert events == ([(30, message.format(1, 2, 30)), (60, message.format(2, 3, 60))] if again else [])
