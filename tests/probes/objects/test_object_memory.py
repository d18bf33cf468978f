"""What a walk over Python's objects has found is known without another one, as long as it is all there is."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from mlflow_stability.probes.model_discovery import Kind, ObjectMemory, ObjectScan, remembered

Walks = list[int]


class Own(nn.Module):
    """A model of a class of its own, so that no other test has made any."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Walks:
    """Each walk over all objects."""
    result: Walks = []
    original = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: result.append(1) or original())
    gc.collect()
    return result


@pytest.fixture
def memory() -> ObjectMemory:
    return ObjectMemory()


def found_by(memory: ObjectMemory, optimizer: Optimizer | None = None) -> set[nn.Module]:
    """The modules of class `Own` that a scan finds."""
    scan = ObjectScan(nn.Module, Optimizer, memory=memory)
    with scan if optimizer is None else scan.about(optimizer):
        (modules,) = remembered(Kind.MODULE)
        remembered(Kind.MODULE, Kind.OPTIMIZER)
    return {module for module in modules if type(module) is Own}


def test_without_new_objects_there_is_no_second_walk(walks: Walks, memory: ObjectMemory) -> None:
    model = Own()
    assert found_by(memory) == found_by(memory) == {model}
    assert len(walks) == 1


def test_a_model_that_was_just_made_is_found_without_a_walk(walks: Walks, memory: ObjectMemory) -> None:
    model = Own()
    found_by(memory)
    younger = Own()
    optimizer = torch.optim.SGD(younger.parameters(), lr=0.1)
    assert found_by(memory, optimizer) == {model, younger}
    assert found_by(memory, optimizer) == {model, younger}
    assert len(walks) == 1


def test_a_model_that_took_the_place_of_another_is_found_without_a_walk(walks: Walks, memory: ObjectMemory) -> None:
    model = Own()
    found_by(memory)
    for _ in range(5):
        model = Own()
        assert found_by(memory) == {model}
    assert len(walks) == 1


def test_a_model_that_is_no_longer_young_is_found_by_a_walk(walks: Walks, memory: ObjectMemory) -> None:
    model = Own()
    found_by(memory)
    older = Own()
    gc.collect()
    assert found_by(memory) == {model, older}
    assert len(walks) == 2
    assert found_by(memory) == {model, older}
    assert len(walks) == 2


def test_a_model_of_a_class_that_was_made_since_is_found(walks: Walks, memory: ObjectMemory) -> None:
    model = Own()
    found_by(memory)

    class Newer(nn.Module):
        pass

    newer = Newer()
    with ObjectScan(nn.Module, memory=memory):
        (modules,) = remembered(Kind.MODULE)
    assert any(module is model for module in modules)
    assert any(module is newer for module in modules)
    assert len(walks) == 2


def test_an_optimizer_of_parameters_that_no_known_model_has_is_walked_for(walks: Walks, memory: ObjectMemory) -> None:
    model = Own()
    found_by(memory)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    assert found_by(memory, optimizer) == {model}
    assert len(walks) == 2


def test_nothing_is_kept_alive(memory: ObjectMemory) -> None:
    model = Own()
    found_by(memory)
    del model
    gc.collect()
    assert not found_by(memory)
