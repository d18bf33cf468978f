from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from probes.measured import Measured, Row, backward, by_layer, everywhere, must_be, net, norm
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW, Muon, Optimizer

from mlflow_stability.probes.parameters.norms import LayerNorms


def truth(model: nn.Module, rate: float | dict[int, float], divisor: float = 1.0) -> Row:
    """What the probe must say, the plain way."""

    def rate_of(parameter: nn.Parameter) -> float:
        return rate if isinstance(rate, float) else rate[id(parameter)]

    def force(parameters: list[nn.Parameter]) -> float:
        return norm(parameter.grad for parameter in parameters) / divisor

    def move(parameters: list[nn.Parameter]) -> float:
        moves = [parameter.grad.double() * rate_of(parameter) for parameter in parameters if parameter.grad is not None]
        return norm(moves) / divisor

    row = everywhere(model, "param_norm", norm)
    row |= everywhere(model, "grad_param_ratio", lambda some: force(some) / norm(some))
    row |= everywhere(model, "lr_ratio", lambda some: move(some) / norm(some))
    row |= {f"grad_norm@{name}": force(some) for name, some in by_layer(model).items()}
    return row


def step(model: nn.Module, optimizer: Optimizer, measured: Measured, seed: int) -> tuple[Row, Row]:
    optimizer.zero_grad()
    backward(model, seed)
    right = truth(model, float(optimizer.param_groups[0]["lr"]))
    optimizer.step()
    return measured.end(), right


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_norms_and_ratios_are_those_of_a_plain_loop(dtype: torch.dtype) -> None:
    model = net(dtype=dtype)
    optimizer = AdamW(model.parameters(), lr=0.01)
    measured = Measured([optimizer], [LayerNorms(1, 1)])
    for seed in range(3):
        must_be(*step(model, optimizer, measured, seed))


def test_the_whole_model_and_its_layers_have_schedules_of_their_own() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    measured = Measured([optimizer], [LayerNorms(2, 3)])
    rows = [step(model, optimizer, measured, seed)[0] for seed in range(7)]
    assert ["param_norm" in row for row in rows] == [True, False, True, False, True, False, True]
    assert ["param_norm@0" in row for row in rows] == [True, False, False, True, False, False, True]


def test_groups_have_learning_rates_of_their_own_be_they_numbers_or_tensors() -> None:
    for fast in (0.5, torch.tensor(0.5)):
        model = net()
        body, head = list(model[:3].parameters()), list(model[3].parameters())
        optimizer = SGD([{"params": body, "lr": 0.1}, {"params": head, "lr": fast}], lr=0.1)
        measured = Measured([optimizer], [LayerNorms(1, 1)])
        backward(model, 0)
        right = truth(model, {id(item): 0.1 for item in body} | {id(item): 0.5 for item in head})
        optimizer.step()
        must_be(measured.end(), right)


def test_optimizers_that_share_a_model_and_even_a_layer_are_added_up() -> None:
    model = net()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    optimizers: list[Optimizer] = [Muon(matrices, lr=0.02), AdamW(others, lr=0.001)]
    measured = Measured(optimizers, [LayerNorms(1, 1)])
    for seed in range(2):
        model.zero_grad()
        backward(model, seed)
        rates = {id(matrice): 0.02 for matrice in matrices} | {id(other): 0.001 for other in others}
        right = truth(model, rates)
        # The first optimizer changes its weights before the second is looked at, and those are not in its sums.
        for optimizer in optimizers:
            optimizer.step()
        must_be(measured.end(), right)


@pytest.mark.parametrize("fused", [False, True])
def test_under_a_loss_scaler_gradients_are_unscaled_be_it_fused_or_not(fused: bool) -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = GradScaler("cpu", init_scale=1024.0)
    measured = Measured([optimizer], [LayerNorms(1, 1)])
    for seed in range(2):
        optimizer.zero_grad()
        backward(model, seed, scale=scaler.get_scale())
        scaler.scale(torch.zeros(()))  # the scaler must have been used
        right = truth(model, 0.01, divisor=scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        must_be(measured.end(), right)


def test_a_layer_without_a_gradient_has_a_norm_of_zero_and_frozen_ones_are_not_measured() -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [LayerNorms(1, 1)])
    backward(model, 0)
    model[3].weight.grad = None
    right = truth(model, 0.1)
    optimizer.step()
    row = measured.end()
    must_be(row, right)
    assert row["grad_norm@3"] == 0
    assert "param_norm@0" not in row


def test_weights_that_are_all_zero_have_no_ratio() -> None:
    model = net()
    nn.init.zeros_(model[3].weight)
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [LayerNorms(1, 1)])
    backward(model, 0)
    optimizer.step()
    row = measured.end()
    assert math.isnan(row["grad_param_ratio@3"])
    assert math.isfinite(row["grad_param_ratio"])


def test_a_sparse_gradient_is_left_out_and_its_weights_are_not() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 4, sparse=True)
            self.up = nn.Linear(4, 2)

    model = Words()
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [LayerNorms(1, 1)])
    model.up(model.words(torch.tensor([1, 2, 2]))).sum().backward()
    before = norm(model.parameters())
    optimizer.step()
    row = measured.end()
    assert row["param_norm"] == pytest.approx(before)
    assert sorted(text for text in row if "@" not in text) == ["param_norm"]
    assert sorted(text for text in row if "@words" in text) == ["param_norm@words"]
    assert "grad_norm@up" in row


def test_a_norm_of_many_values_is_not_rounded_away() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3_000_001,), 0.01))

    model = One()
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [LayerNorms(1, 1)])
    optimizer.step()
    assert measured.end()["param_norm"] == pytest.approx(norm(model.parameters()), rel=1e-6)


def test_the_signals_of_a_block_are_the_same_objects_at_every_step() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    probe = LayerNorms(1, 1)
    measured = Measured([optimizer], [])
    measured.probes = [probe]
    seen = []
    for seed in range(2):
        measured.begin()
        backward(model, seed)
        optimizer.step()
        seen.append([id(block.signals) for block in probe.blocks(measured.step)])
        measured.step += 1
    assert seen[0] == seen[1]


def test_a_learning_rate_of_numpy_gives_numbers_of_python() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=np.float64(0.1))
    measured = Measured([optimizer], [LayerNorms(1, 1)])
    backward(model, 0)
    optimizer.step()
    assert {type(item) for item in measured.end().values()} == {float}
