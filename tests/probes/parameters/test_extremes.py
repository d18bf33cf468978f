"""The largest gradient, zeros, and what is not finite, large or small."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes.measured import Measured, backward, by_layer, must_be, net
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW

from mlflow_stability.probes.parameters.extreme_values import GradientExtremes, NonfiniteCount, WeightExtremes
from mlflow_stability.probes.parameters.layers import Layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_gradient_and_the_share_of_zeros(dtype: torch.dtype) -> None:
    model = net(dtype=dtype)
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [GradientExtremes(1)])
    backward(model, 0)
    model[0].weight.grad[:3] = 0
    model[3].weight.grad = None
    values = torch.cat(
        [parameter.grad.flatten().double() for parameter in model.parameters() if parameter.grad is not None]
    )
    optimizer.step()
    share = float((values == 0).double().mean())
    must_be(measured.end(), {"grad_max": float(values.abs().max()), "grad_zeros": share})


def test_the_largest_gradient_is_unscaled_where_a_fused_scaler_left_it_scaled() -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = GradScaler("cpu", init_scale=256.0)
    measured = Measured([optimizer], [GradientExtremes(1)])
    backward(model, 0, scale=256.0)
    scaler.scale(torch.zeros(()))
    largest = max(float(parameter.grad.abs().max()) for parameter in model.parameters() if parameter.grad is not None)
    scaler.step(optimizer)
    assert measured.end()["grad_max"] == pytest.approx(largest / 256)


@pytest.mark.parametrize("budget", [None, 4 * 50])
def test_gradients_that_are_not_finite_are_counted_where_they_are(budget: int | None) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    backward(model, 0)
    model[0].weight.grad[1, :5] = math.nan
    model[0].bias.grad[0] = -math.inf
    model[2][0].weight.grad[:, 3] = math.inf
    block = NonfiniteCount(budget).count(optimizer, Layers(), 0)
    assert block is not None
    assert isinstance(block.values, torch.Tensor)
    counts = dict(zip((signal.place for signal in block.signals), block.values.tolist(), strict=True))
    assert counts == dict.fromkeys(by_layer(model), 0) | {"0": 6, "2.0": 16}


VALUES = st.sampled_from(
    [0.0, -0.0, 1.0, -2.0, 1e6, -1.1e6, 1e30, 1e-10, -9e-11, 1e-38, 1e-44, math.inf, -math.inf, math.nan]
)


@pytest.mark.slow
@given(st.lists(VALUES, min_size=1, max_size=40), st.sampled_from([None, 4 * 12]))
@settings(max_examples=60)
def test_weights_are_counted_one_by_one(values: list[float], budget: int | None) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor(values))
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [WeightExtremes(1, budget)])
    optimizer.step()
    row = measured.end()
    sizes = [abs(float(value)) for value in torch.tensor(values)]
    assert row["param_nonfinite_count"] == sum(not math.isfinite(size) for size in sizes)
    assert row["param_large"] == sum(1e6 < size < math.inf for size in sizes)
    small = float(torch.tensor(1e-10))
    assert row["param_small"] == sum(0 < size < small for size in sizes)
    largest = math.nan if any(map(math.isnan, sizes)) else max(sizes)
    assert row["param_max"] == pytest.approx(largest, nan_ok=True)


def test_weights_of_all_optimizers_are_counted_together() -> None:
    models = [nn.Linear(2, 2) for _ in range(2)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    for model in models:
        nn.init.constant_(model.weight, 2e6)
    measured = Measured(optimizers, [WeightExtremes(1)])
    for optimizer in optimizers:
        optimizer.step()
    assert measured.end()["param_large"] == 8
