"""Trainings in which something is wrong with layers, and what should be said of each: what judgements must find.

In: a seed, and a meter. Each is a healthy training but for one thing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.layer_meter import Meter
from benchmarks.usual_trainings import STEPS, Training, classifies, deep, descend, points
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

HURT_AT = 1003
"""Between two measurements."""


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def train(
    seed: int,
    meter: Meter,
    build: Callable[[], nn.Sequential] = lambda: deep(64, 4),
    rate: float = 1e-3,
    hurt: Callable[[nn.Sequential], None] | None = None,
    at: int = 1,
    optimizer: type[Adam] | type[SGD] = AdamW,
) -> None:
    """A classification, to which something is done before a step."""
    torch.manual_seed(seed)
    model = build()
    loss = classifies(model, points, seed)

    @torch.no_grad()
    def hurt_it() -> None:
        if hurt is not None:
            hurt(model)

    def loss_of(step: int) -> Tensor:
        if step == at:
            hurt_it()
        return loss(step)

    descend(meter, model, optimizer(model.parameters(), lr=rate), loss_of, steps=STEPS)


def linear(model: nn.Sequential, number: int) -> nn.Linear:
    return [each for each in model if isinstance(each, nn.Linear)][number]


def detached(seed: int, meter: Meter) -> None:
    """What lies before the fourth layer gets no gradient."""
    train(seed, meter, lambda: nn.Sequential(*deep(64, 4)[:6], Detached(), *deep(64, 4)[6:]))


def dead_units(seed: int, meter: Meter) -> None:
    """No unit of the third layer is ever active."""
    train(seed, meter, hurt=lambda model: linear(model, 2).bias.fill_(-100.0))


def dead_units_later(seed: int, meter: Meter) -> None:
    """The same in mid-training, under SGD."""
    train(seed, meter, rate=0.1, hurt=lambda model: linear(model, 2).bias.fill_(-100.0), at=503, optimizer=SGD)


def saturated(seed: int, meter: Meter) -> None:
    """Fifteen sigmoid layers: the gradient dies on its way to the first."""
    train(seed, meter, lambda: deep(32, 15, nn.Sigmoid), rate=0.1, optimizer=SGD)


def tiny_start(seed: int, meter: Meter) -> None:
    """Weights of the first layers were drawn far too small, for plain SGD."""

    def shrink(model: nn.Sequential) -> None:
        for number in range(3):
            linear(model, number).weight.mul_(0.01)
            linear(model, number).bias.zero_()

    train(seed, meter, rate=0.05, hurt=shrink, optimizer=SGD)


def blown_up(seed: int, meter: Meter) -> None:
    """The weights of one layer are thirty times what they were."""
    train(seed, meter, hurt=lambda model: linear(model, 2).weight.mul_(30.0), at=HURT_AT)


def unbalanced(seed: int, meter: Meter) -> None:
    """One layer is drawn a thousand times too small, another a thousand times too large; the products are right."""

    def tilt(model: nn.Sequential) -> None:
        linear(model, 1).weight.mul_(1e-2)
        linear(model, 1).bias.mul_(1e-2)
        linear(model, 2).weight.mul_(1e2)

    train(seed, meter, rate=1e-5, hurt=tilt, optimizer=SGD)


def rate_far_too_low(seed: int, meter: Meter) -> None:
    train(seed, meter, rate=1e-10)


def rate_far_too_high(seed: int, meter: Meter) -> None:
    train(seed, meter, lambda: deep(64, 1, nn.Tanh), rate=100.0, optimizer=SGD)


def rate_too_high_for_adam(seed: int, meter: Meter) -> None:
    train(seed, meter, rate=1.0)


ILL: tuple[tuple[Training, tuple[str, ...]], ...] = (
    (detached, ("dead_layer",)),
    (dead_units, ("dead_layer",)),
    (dead_units_later, ("dead_layer",)),
    (saturated, ("gradient_vanishing",)),
    (tiny_start, ("gradient_vanishing", "gradient_imbalance")),
    (blown_up, ("weight_spike", "layer_explosion", "gradient_explosion")),
    (unbalanced, ("gradient_imbalance", "weight_imbalance")),
    (rate_far_too_low, ("update_ratio_low",)),
    (rate_far_too_high, ("update_ratio_high",)),
    (rate_too_high_for_adam, ("divergence", "update_ratio_high")),
)
"""Each with the kinds of which at least one should be said."""
