from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from probes.measured import Measured, backward, by_layer, everywhere, must_be, net
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam, AdamW, Muon, NAdam, Optimizer, RAdam

from mlflow_stability.probes.parameters.adam_rms import AdamRms


def rms(optimizer: Optimizer, parameters: list[nn.Parameter], divisor: float = 1.0) -> float:
    """The root of the mean of g² / max(v, ε²), with the bias of v corrected, in double precision."""
    total, count = 0.0, 0
    for group in optimizer.param_groups:
        for param in group["params"]:
            if not any(param is parameter for parameter in parameters) or param.grad is None:
                continue
            state = optimizer.state[param]
            moment = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"].double()
            moment = moment / (1 - group["betas"][1] ** float(state["step"]))
            total += float(((param.grad.double() / divisor) ** 2 / moment.clamp_min(group["eps"] ** 2)).sum())
            count += param.numel()
    return math.sqrt(total / count)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (AdamW, {}),
    "short memory": (AdamW, {"betas": (0.9, 0.9)}),
    "amsgrad": (AdamW, {"amsgrad": True}),
    "large epsilon": (AdamW, {"eps": 0.01}),
    "fused": (AdamW, {"fused": True}),
    "adam": (Adam, {}),
    "nadam": (NAdam, {}),
    "radam": (RAdam, {}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("budget", [None, 4 * 100])
def test_the_rms_is_that_of_a_plain_loop(name: str, budget: int | None) -> None:
    kind, options = CASES[name]
    model = net()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    measured = Measured([optimizer], [AdamRms(1, 1, budget)])
    for seed in range(4):
        optimizer.zero_grad()
        backward(model, seed, scale=1.0 + seed)
        optimizer.step()
        must_be(measured.end(), everywhere(model, "adam_rms", lambda some: rms(optimizer, some)))


def test_half_precision_is_no_less_exact() -> None:
    model = net(dtype=torch.bfloat16)
    optimizer = AdamW(model.parameters(), lr=0.01)
    measured = Measured([optimizer], [AdamRms(1, 1)])
    for seed in range(3):
        optimizer.zero_grad()
        backward(model, seed)
        optimizer.step()
        must_be(measured.end(), everywhere(model, "adam_rms", lambda some: rms(optimizer, some)))


@pytest.mark.parametrize("fused", [False, True])
def test_under_a_loss_scaler_it_is_the_same_be_it_fused_or_not(fused: bool) -> None:
    rows = []
    for scaled in (True, False):
        model = net()
        optimizer = AdamW(model.parameters(), lr=0.01, fused=fused)
        scaler = GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        measured = Measured([optimizer], [AdamRms(1, 1)])
        for seed in range(3):
            optimizer.zero_grad()
            backward(model, seed, scale=scaler.get_scale())
            scaler.scale(torch.zeros(()))
            scaler.step(optimizer)
            scaler.update()
            row = measured.end()
        rows.append(row)
    must_be(rows[0], rows[1], rel=1e-4)


def test_beside_muon_only_the_parameters_of_adam_are_measured() -> None:
    model = net()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    adam = AdamW([parameter for parameter in model.parameters() if parameter.dim() != 2], lr=0.001)
    optimizers: list[Optimizer] = [Muon(matrices, lr=0.02), adam]
    measured = Measured(optimizers, [AdamRms(1, 1)])
    backward(model, 0)
    for optimizer in optimizers:
        optimizer.step()
    row = measured.end()
    biases = {name: [p for p in some if p.dim() != 2] for name, some in by_layer(model).items()}
    truth = {f"adam_rms@{name}": rms(adam, some) for name, some in biases.items() if some}
    must_be(row, truth | {"adam_rms": rms(adam, [p for some in biases.values() for p in some])})


def test_a_weight_that_never_had_a_gradient_counts_as_calm() -> None:
    model = nn.Embedding(6, 3)
    optimizer = AdamW(model.parameters(), lr=0.01, eps=0.0)
    measured = Measured([optimizer], [AdamRms(1, 1)])
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert measured.end()["adam_rms"] == pytest.approx(math.sqrt(1 / 3))


def test_nothing_is_measured_without_second_moments() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    measured = Measured([optimizer], [AdamRms(1, 1)])
    backward(model, 0)
    optimizer.step()
    assert measured.end() == {}


class LowRank(AdamW):
    """Keeps its moments of matrices in a space of one dimension, as GaLore does."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state, gradient = self.state[param], param.grad
                if gradient.dim() == 2:
                    gradient = gradient.mean(0, keepdim=True)
                state["step"] = state.get("step", 0) + 1
                state["exp_avg_sq"] = state.get("exp_avg_sq", torch.zeros_like(gradient)).lerp(gradient.square(), 0.001)


def test_moments_of_another_shape_than_the_gradient_are_left_out() -> None:
    model = net()
    optimizer = LowRank(model.parameters(), lr=0.01)
    measured = Measured([optimizer], [AdamRms(1, 1)])
    backward(model, 0)
    optimizer.step()
    row = measured.end()
    biases = {name: [p for p in some if p.dim() != 2] for name, some in by_layer(model).items()}
    for name, some in biases.items():
        if some:
            assert row[f"adam_rms@{name}"] == pytest.approx(rms(optimizer, some), rel=1e-4)
