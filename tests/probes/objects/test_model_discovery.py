"""Models are found from their optimizers, in one walk over all objects where several ask at once."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from mlflow_stability.probes.model_discovery import ObjectScan, living, models_of


def test_the_outermost_module_that_owns_the_parameters_is_found() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    assert models_of([optimizer]) == [model]


def test_inside_one_walk_objects_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []
    original = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: walks.append(1) or original())
    with ObjectScan(nn.Module, torch.optim.Optimizer):
        first, second = living(nn.Module), living(nn.Module)
        living(torch.optim.Optimizer)
    assert first[0] is second[0]
    assert len(walks) == 1
    living(nn.Module)
    assert len(walks) == 2


def test_what_the_walk_does_not_look_for_is_looked_for_on_its_own() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with ObjectScan(nn.Module):
        (result,) = living(torch.optim.Optimizer)
    assert any(value is optimizer for value in result)


def test_a_model_made_after_a_walk_is_found_by_the_next() -> None:
    with ObjectScan(nn.Module):
        living(nn.Module)
    model = nn.Linear(1, 1)
    assert models_of([torch.optim.SGD(model.parameters(), lr=0.1)]) == [model]
