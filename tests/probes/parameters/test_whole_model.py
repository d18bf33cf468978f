"""Steps at which only the whole model is measured, and none of its layers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from probes.measured import Measured, Row, backward, must_be, net, norm
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW, Muon, Optimizer

from mlflow_stability.probes.parameters.norms import LayerNorms, MomentumNorm, WeightUpdates
from mlflow_stability.probes.probe_scheduler import Probe

NEVER = 1_000_000


def probes() -> list[Probe]:
    return [LayerNorms(1, NEVER), WeightUpdates(1, NEVER), MomentumNorm(1, NEVER)]


def measured_by(optimizers: list[Optimizer]) -> Measured:
    measured = Measured(optimizers, probes())
    measured.step = 1  # each look at step 0 is one at the layers, too
    measured.begin()
    return measured


def wide() -> nn.Sequential:
    """More values than are copied side by side for their norm."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 300), nn.Linear(300, 300), nn.Linear(300, 4))


def groups(model: nn.Sequential, fast: float | torch.Tensor) -> list[Optimizer]:
    body, head = list(model[:2].parameters()), list(model[2:].parameters())
    return [SGD([{"params": body, "lr": 0.1}, {"params": head, "lr": fast}], lr=0.1, momentum=0.9)]


MAKERS: dict[str, Callable[[nn.Sequential], list[Optimizer]]] = {
    "one optimizer": lambda model: [AdamW(model.parameters(), lr=0.01)],
    "learning rate in a tensor": lambda model: [SGD(model.parameters(), lr=torch.tensor(0.01), momentum=0.9)],
    "groups with one learning rate": lambda model: groups(model, 0.1),
    "groups with learning rates of their own": lambda model: groups(model, 0.5),
    "a group with its learning rate in a tensor": lambda model: groups(model, torch.tensor(0.5)),
    "two optimizers": lambda model: [
        Muon([parameter for parameter in model.parameters() if parameter.dim() == 2], lr=0.02),
        AdamW([parameter for parameter in model.parameters() if parameter.dim() != 2], lr=0.001),
    ],
}


def rates_of(optimizers: list[Optimizer]) -> dict[int, float]:
    every = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(param): float(group["lr"]) for group in every for param in group["params"]}


def momentum_of(optimizers: list[Optimizer]) -> float:
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    return norm(state.get("exp_avg", state.get("momentum_buffer")) for state in states)


def step(model: nn.Module, optimizers: list[Optimizer], measured: Measured) -> tuple[Row, Row]:
    """What was measured of a step whose gradients are there, and what plain loops say of it."""
    weights, rates = list(model.parameters()), rates_of(optimizers)
    before = [weight.detach().double().clone() for weight in weights]
    forces = norm(weight.grad for weight in weights)
    moves = norm(weight.grad.double() * rates[id(weight)] for weight in weights if weight.grad is not None)
    for optimizer in optimizers:
        optimizer.step()
    update = norm(tensor.detach().double() - old for tensor, old in zip(weights, before, strict=True))
    size = norm(before)
    truth = {
        "param_norm": size,
        "grad_param_ratio": forces / size if size else math.nan,
        "lr_ratio": moves / size if size else math.nan,
        "update_norm": update,
        "update_ratio": update / size if size else math.nan,
        "momentum_norm": momentum_of(optimizers),
    }
    return measured.end(), truth


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("model_of", [net, wide, lambda: net(dtype=torch.bfloat16)], ids=["small", "wide", "bf16"])
def test_it_is_measured_as_plain_loops_measure_it(
    make: Callable[[nn.Sequential], list[Optimizer]], model_of: Callable[[], nn.Sequential]
) -> None:
    model = model_of()
    optimizers = make(model)
    measured = measured_by(optimizers)
    for seed in range(3):
        model.zero_grad()
        backward(model, seed)
        must_be(*step(model, optimizers, measured))


def test_gradients_that_carry_a_loss_scale_are_measured_without_it() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    measured = measured_by([optimizer])
    scaler = GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))
    for seed in range(2):
        optimizer.zero_grad()
        backward(model, seed, scale=scaler.get_scale())
        size = norm(model.parameters())
        forces = norm(parameter.grad for parameter in model.parameters()) / 1024.0
        scaler.step(optimizer)
        scaler.update()
        row = measured.end()
        assert row["param_norm"] == pytest.approx(size, rel=1e-5)
        assert row["grad_param_ratio"] == pytest.approx(forces / size, rel=1e-5)


def test_weights_that_are_all_zero_have_no_ratios() -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizers: list[Optimizer] = [SGD(model.parameters(), lr=0.1, momentum=0.9)]
    measured = measured_by(optimizers)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    row, truth = step(model, optimizers, measured)
    must_be(row, truth)
    assert math.isnan(row["lr_ratio"])


def test_infinity_and_nan_together_are_nan() -> None:
    model = net()
    optimizers = MAKERS["two optimizers"](model)
    measured = measured_by(optimizers)
    backward(model, 0)
    with torch.no_grad():
        model[0].weight.fill_(torch.inf)
        model[0].bias.fill_(torch.nan)
    for optimizer in optimizers:
        optimizer.step()
    assert math.isnan(measured.end()["param_norm"])


def test_layers_that_were_skipped_at_their_step_are_measured_at_the_next_look() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [WeightUpdates(1, 4)])
    rows = []
    for seed in range(7):
        optimizer.zero_grad()
        backward(model, seed)
        if seed != 4:
            optimizer.step()
        rows.append(measured.end())
    assert ["update_norm" in row for row in rows] == [True, True, True, True, False, True, True]
    assert ["update_norm@0" in row for row in rows] == [True, False, False, False, False, True, False]
