from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from probes.measured import Measured, Row, backward, by_layer, everywhere, must_be, net, norm
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import LBFGS, SGD, Adagrad, AdamW, Muon, Optimizer

from mlflow_stability.probes.parameters.extreme_values import GradientExtremes, WeightExtremes
from mlflow_stability.probes.parameters.norms import LayerNorms, MomentumNorm, WeightUpdates
from mlflow_stability.probes.probe import StepView

Weights = dict[int, Tensor]


def weights_of(model: nn.Module) -> Weights:
    return {id(parameter): parameter.detach().double().clone() for parameter in model.parameters()}


def truth(model: nn.Module, before: Weights) -> Row:
    def moved(some: list[nn.Parameter]) -> float:
        return norm(tensor.detach().double() - before[id(tensor)] for tensor in some)

    row = everywhere(model, "update_norm", moved)
    row |= everywhere(model, "update_ratio", lambda some: moved(some) / norm(before[id(item)] for item in some))
    return row


MAKERS: dict[str, Callable[[nn.Module], list[Optimizer]]] = {
    "adamw": lambda model: [AdamW(model.parameters(), lr=0.01)],
    "momentum": lambda model: [SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)],
    "adagrad": lambda model: [Adagrad(model.parameters(), lr=0.1)],
    "muon": lambda model: [
        Muon([parameter for parameter in model.parameters() if parameter.dim() == 2], lr=0.02),
        AdamW([parameter for parameter in model.parameters() if parameter.dim() != 2], lr=0.001),
    ],
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_are_the_real_changes_of_the_weights(name: str, dtype: torch.dtype) -> None:
    model = net(dtype=dtype)
    optimizers = MAKERS[name](model)
    measured = Measured(optimizers, [WeightUpdates(1, 1)])
    for seed in range(4):
        model.zero_grad()
        backward(model, seed)
        before = weights_of(model)
        for optimizer in optimizers:
            optimizer.step()
        must_be(measured.end(), truth(model, before))


def test_the_update_of_a_single_small_tensor_is_its_real_change() -> None:
    model = nn.Linear(4, 1, bias=False)
    optimizer = AdamW(model.parameters(), lr=0.01)
    measured = Measured([optimizer], [WeightUpdates(1, 100)])
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        before = weights_of(model)
        optimizer.step()
        row, wanted = measured.end(), truth(model, before)
        assert wanted["update_norm"] > 0
        must_be(row, {key: wanted[key] for key in row})
        assert {"update_norm", "update_ratio"} <= set(row)


def test_complex_weights_count_as_real_ones() -> None:
    model = nn.Linear(4, 1)
    spectrum = nn.Parameter(torch.randn(3, dtype=torch.cfloat))
    model.register_parameter("spectrum", spectrum)
    optimizer = AdamW(model.parameters(), lr=0.01)
    probes = [WeightUpdates(1, 100), LayerNorms(1, 100), MomentumNorm(1, 100), WeightExtremes(1), GradientExtremes(1)]
    measured = Measured([optimizer], probes)
    (model(torch.randn(8, 4)).square().mean() + spectrum.abs().square().sum()).backward()
    before = {id(parameter): parameter.detach().clone() for parameter in model.parameters()}
    optimizer.step()
    after = list(model.parameters())
    moved, size = (
        math.hypot(*(float((tensor.detach() - before[id(tensor)]).norm()) for tensor in after)),
        math.hypot(*(float(tensor.norm()) for tensor in before.values())),
    )
    row = measured.end()
    assert row["update_norm"] == pytest.approx(moved, rel=1e-5)
    assert row["update_ratio"] == pytest.approx(moved / size, rel=1e-5)
    assert row["param_norm"] == pytest.approx(size, rel=1e-5)
    momentum = math.hypot(*(float(optimizer.state[item]["exp_avg"].norm()) for item in after))
    assert row["momentum_norm"] == pytest.approx(momentum, rel=1e-5)
    reals = [torch.view_as_real(item) if item.is_complex() else item for item in before.values()]
    assert row["param_max"] == pytest.approx(max(float(real.abs().max()) for real in reals))
    assert math.isfinite(row["grad_max"])


def test_a_closure_may_be_evaluated_many_times() -> None:
    model = net()
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=4)
    measured = Measured([optimizer], [WeightUpdates(1, 1)])
    before = weights_of(model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        backward(model, 0)
        return torch.zeros(())

    optimizer.step(closure)
    must_be(measured.end(), truth(model, before))


@pytest.mark.parametrize("fused", [False, True])
def test_under_a_loss_scaler_a_step_counts_only_when_it_was_taken(fused: bool) -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = GradScaler("cpu", init_scale=1024.0)
    measured = Measured([optimizer], [WeightUpdates(1, 1)])
    for seed, broken in enumerate((False, True, False)):
        optimizer.zero_grad()
        backward(model, seed, scale=scaler.get_scale())
        scaler.scale(torch.zeros(()))
        if broken:
            model[0].weight.grad[0, 0] = math.inf
        before = weights_of(model)
        scaler.step(optimizer)
        scaler.update()
        row = measured.end()
        if not broken:
            must_be(row, truth(model, before))
        elif not fused:
            assert row == {}


def test_a_step_that_is_known_to_be_skipped_says_nothing() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    probe, measured = WeightUpdates(1, 1), Measured([], [])
    probe.before_step(StepView(optimizer, 0, measured.layers))
    probe.after_step(StepView(optimizer, 0, measured.layers, skipped=True))
    assert probe.blocks(0) == ()


def in_turns(model: nn.Module, optimizer: Optimizer, budget: int, steps: int, layers_every: int = 1) -> list[Row]:
    """One row for each step, checked as far as it goes."""
    measured = Measured([optimizer], [WeightUpdates(1, layers_every, budget)])
    rows = []
    for seed in range(steps):
        optimizer.zero_grad()
        backward(model, seed)
        before = weights_of(model)
        optimizer.step()
        row, right = measured.end(), truth(model, before)
        must_be(
            {name: value for name, value in row.items() if "@" in name},
            {name: right[name] for name in row if "@" in name},
        )
        rows.append(row)
    return rows


def test_beyond_the_budget_layers_come_in_turns_and_the_model_when_all_had_theirs() -> None:
    model = net()
    rows = in_turns(model, SGD(model.parameters(), lr=0.1), 4 * 300, 6)
    seen = [sorted(name for name in row if name.startswith("update_norm@")) for row in rows]
    names = [f"update_norm@{name}" for name in by_layer(model)]
    assert [name for some in seen[:3] for name in some] == names
    assert seen[3:] == seen[:3]
    assert ["update_norm" in row for row in rows] == [False, False, True, False, False, True]
    newest = [value for row in rows[:3] for name, value in row.items() if name.startswith("update_norm@")]
    assert rows[2]["update_norm"] == pytest.approx(math.hypot(*newest))


def test_a_layer_that_is_wanted_comes_at_its_next_turn_and_then_not_until_it_is_wanted_again() -> None:
    model = net()
    rows = in_turns(model, SGD(model.parameters(), lr=0.1), 4 * 300, 12, layers_every=6)
    for name in by_layer(model):
        assert [f"update_ratio@{name}" in row for row in rows[:6]].count(True) == 1
        assert [f"update_ratio@{name}" in row for row in rows[6:]].count(True) == 1


def test_a_layer_larger_than_the_budget_is_measured_in_slices() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.0)  # nothing moves, so that slices of several steps can be compared
    measured = Measured([optimizer], [WeightUpdates(1, 1, 4 * 40)])
    rows = []
    for seed in range(60):
        backward(model, seed)
        optimizer.step()
        rows.append(measured.end())
    whole = [row for row in rows if "update_ratio" in row]
    assert whole
    assert all(row["update_norm"] == 0 and row["update_ratio"] == 0 for row in whole)
    for name in by_layer(model):
        assert any(row.get(f"update_ratio@{name}") == 0 for row in rows)


def test_nothing_is_measured_with_a_budget_that_is_too_small() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [WeightUpdates(1, 1, 8)])
    backward(model, 0)
    optimizer.step()
    assert measured.end() == {}


def test_measuring_changes_neither_weights_nor_random_numbers() -> None:
    finals = []
    for watched in (True, False):
        model = net()
        optimizer = AdamW(model.parameters(), lr=0.01)
        measured = Measured([optimizer], [WeightUpdates(1, 1)] if watched else [])
        for seed in range(3):
            optimizer.zero_grad()
            backward(model, seed)
            optimizer.step()
            measured.end()
        finals.append(([parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()))
    assert all(map(torch.equal, finals[0][0], finals[1][0]))
    assert torch.equal(finals[0][1], finals[1][1])
