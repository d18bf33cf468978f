"""Steps of another library's optimizers are seen, from the first one after that library was loaded.

A small library with fastai's interface replaces it; fastai and Keras themselves: `tests/trainers/table.py`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scenarios.watching import Row, batches, mse, tiny_model, true_norm, watching
from torch import nn

import mlflow_stability


class OtherOptimizer:
    """SGD with fastai's attributes."""

    def __init__(self, parameters: Any, rate: Any) -> None:
        self.param_lists, self.hypers = [list(parameters)], [{"lr": rate}]
        self.state: dict[Any, dict[str, Any]] = defaultdict(dict)

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_lists[0]:
            if parameter.grad is not None:
                parameter -= self.hypers[0]["lr"] * parameter.grad
                self.state[parameter] = {"step": self.state[parameter].get("step", 0) + 1}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("fastai.optimizer")
    module.Optimizer = type("Optimizer", (OtherOptimizer,), {"step": OtherOptimizer.step})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastai.optimizer", module)
    return module


def trained(optimizer: Any, model: nn.Module) -> list[Row]:
    rows = []
    for batch in batches(4):
        model.zero_grad()
        loss = mse(model, batch)
        loss.backward()
        norm, rate = true_norm(model.parameters()), float(optimizer.hypers[0]["lr"])
        rows.append({"loss": loss.item(), "micro_batches": 1.0, "grad_norm": norm, "learning_rate": rate})
        optimizer.step()
        optimizer.hypers[0]["lr"] *= 0.5
    return rows


@pytest.mark.parametrize("rate", [0.1, np.float64(0.1)])
def test_every_step_is_recorded_and_weights_are_those_of_a_bare_training(library: ModuleType, rate: Any) -> None:
    bare = tiny_model()
    trained(library.Optimizer(bare.parameters(), rate), bare)
    original = library.Optimizer.step
    with watching() as watched:
        model = tiny_model()
        rows = trained(library.Optimizer(model.parameters(), rate), model)
    watched.must_be(rows)
    assert torch.equal(
        nn.utils.parameters_to_vector(model.parameters()), nn.utils.parameters_to_vector(bare.parameters())
    )
    assert library.Optimizer.step is original


def test_a_library_that_is_loaded_later_is_watched_at_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with watching() as watched:
        module = ModuleType("fastai.optimizer")
        module.Optimizer = type("Optimizer", (OtherOptimizer,), {"step": OtherOptimizer.step})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "fastai.optimizer", module)
        model = tiny_model()
        rows = trained(module.Optimizer(model.parameters(), 0.1), model)
    watched.must_be(rows)


def test_a_broken_step_is_not_made(library: ModuleType, tmp_path: Path) -> None:
    options = mlflow_stability.Options(journal_dir=tmp_path)
    mlflow_stability.autolog(guard=True, offline=True, silent=True, strict=True, options=options)
    try:
        model = tiny_model()
        optimizer = library.Optimizer(model.parameters(), 0.1)
        trained(optimizer, model)
        before, state = nn.utils.parameters_to_vector(model.parameters()).clone(), dict(optimizer.state)
        model.zero_grad()
        (mse(model, next(batches(1))) * float("nan")).backward()
        optimizer.step()
        assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
        assert dict(optimizer.state) == state
        assert not torch.isfinite(model[0].weight.grad).any(), "the script finds its gradients again"
    finally:
        mlflow_stability.autolog(disable=True)
