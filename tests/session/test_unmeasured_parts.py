"""What cannot be measured is reported once, and is not measured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scenarios.watching import watching
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import SGD

from mlflow_stability.kinds.catalog import documentation
from mlflow_stability.probes.gradient_norm import is_split
from mlflow_stability.session.facts_probe import unseen_parts
from mlflow_stability.vocabulary.result import Severity


@pytest.fixture(autouse=True, scope="module")
def only_objects_of_this_file_are_looked_at() -> None:
    """Not here, where it is asked whether anything is frozen."""
    gc.unfreeze()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_nothing_is_reported_if_all_parts_of_a_training_are_found() -> None:
    model = nn.Linear(4, 1)
    assert unseen_parts([model], [SGD(model.parameters(), lr=0.1)], 10) == []


def test_parameters_that_belong_to_no_module_are_no_reason_to_speak_unless_something_is_frozen() -> None:
    optimizer = SGD([torch.zeros(3, requires_grad=True)], lr=0.1)
    assert unseen_parts([], [optimizer], 10) == []
    gc.freeze()
    try:
        (event,) = unseen_parts([], [optimizer], 10)
    finally:
        gc.unfreeze()
    assert (event.kind, event.severity, event.step) == ("not_measured", Severity.INFO, 10)
    assert "1 of 1 trained parameters" in event.message
    assert documentation("not_measured").sees


@pytest.mark.slow
def test_of_gradients_that_are_split_there_is_no_norm_and_no_error(alone: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Replicate()]))
    optimizer = SGD([weight], lr=0.1)
    with watching() as watched:
        for _ in range(3):
            loss = (weight * weight).sum()
            assert isinstance(loss, DTensor)
            loss.to_local().backward()
            optimizer.step()
        rows = watched.rows()
    assert [set(row) for row in rows] == [{"loss", "micro_batches", "learning_rate"}] * 3
    (event,) = unseen_parts([], [optimizer], 10)
    assert "1 of 1 trained parameters are split over processes" in event.message


def test_what_fsdp_holds_in_one_process_is_whole(alone: None) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight._fsdp_flattened = True  # type: ignore[attr-defined]
    assert not is_split(weight)
