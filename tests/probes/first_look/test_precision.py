"""What is measured of gradients and steps beside their precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from mlflow_stability.probes.first_look.module_settings import Precision
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.probe import StepView

GRADIENT = 0.5


class KeepsRemainders(SGD):
    """Keeps a tensor of its own for each parameter."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["remainder"] = torch.zeros_like(parameter)


def measured(
    model: nn.Linear, optimizer: Optimizer, gradient: float = GRADIENT, rates: tuple[float, ...] = (), looks: int = 2
) -> dict[str, float]:
    """What the last of these looks gives."""
    precision, values = Precision(), {}
    for look in range(looks):
        if rates:
            optimizer.param_groups[0]["lr"] = rates[look]
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        norm = gradient * sum(parameter.numel() for parameter in model.parameters()) ** 0.5
        view = StepView(optimizer, 10, Layers(), norm=norm)
        precision.before_step(view)
        optimizer.step()
        precision.after_step(view)
        blocks = precision.blocks()
        values = {block.signals[0].quantity: float(block.values[0]) for block in blocks}
    return values


def test_gradients_are_measured_in_units_of_epsilon_under_adam_alone() -> None:
    model = nn.Linear(4, 4)
    measurements = measured(model, Adam(model.parameters(), eps=2.0))
    assert measurements == {"gradient_over_epsilon": pytest.approx(GRADIENT / 2.0)}
    assert measured(model, SGD(model.parameters(), lr=0.1)) == {}


def test_the_largest_gradient_of_weights_in_fp16_is_measured() -> None:
    model = nn.Linear(4, 4).half()
    assert measured(model, SGD(model.parameters(), lr=1.0))["fp16_gradient_max"] == GRADIENT


@pytest.mark.parametrize(("rate", "lost"), [(1e-6, 1.0), (1.0, 0.0)])
def test_half_precision_weights_that_a_step_leaves_unchanged_are_counted(rate: float, lost: float) -> None:
    model = nn.Linear(64, 64).bfloat16()
    nn.init.constant_(model.weight, 0.1)
    nn.init.constant_(model.bias, 0.1)
    assert measured(model, SGD(model.parameters(), lr=rate)) == {"updates_lost": lost}


def test_a_first_look_a_rising_rate_and_optimizers_that_keep_more_say_nothing() -> None:
    model = nn.Linear(64, 64).bfloat16()
    assert measured(model, SGD(model.parameters(), lr=1e-6), looks=1) == {}
    assert measured(model, SGD(model.parameters(), lr=1e-6), rates=(1e-6, 2e-6)) == {}
    assert measured(model, KeepsRemainders(model.parameters(), lr=1e-6)) == {}
    assert measured(model, SGD(model.parameters(), lr=1e-6), gradient=0.0)["updates_lost"] == 0.0
