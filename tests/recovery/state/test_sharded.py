"""Parameters that are split over processes: each process keeps and restores its own shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage

from mlflow_stability.recovery.state.restore import restore_state
from mlflow_stability.recovery.state.state_copy import copy_state
from mlflow_stability.recovery.state.training_parts import SplitBy, StateSplit, find_parts, what_splits


@pytest.fixture
def model(tmp_path: Path) -> Iterator[nn.Module]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    for item in (made[0], made):
        fully_shard(item, mesh=mesh)
    yield made
    dist.destroy_process_group()


@pytest.mark.parametrize("lost", [False, True])
def test_shards_and_their_moments_are_restored_and_stay_shards(model: nn.Module, lost: bool) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 4)).pow(2).sum().backward()
        optimizer.step()

    def all_of_it() -> list[torch.Tensor]:
        moments = [item for state in optimizer.state.values() for item in state.values()]
        result = [*model.parameters(), *moments]
        return [(item.full_tensor() if hasattr(item, "full_tensor") else item).clone() for item in result]

    step()
    parts = find_parts([optimizer])
    copy, before = copy_state(parts, 1), all_of_it()
    assert sorted(copy.tensors) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    step()
    after, kinds = all_of_it(), [type(item) for state in optimizer.state.values() for item in state.values()]
    if lost:
        optimizer.state.clear()
    restore_state(copy, parts)
    assert [type(item) for state in optimizer.state.values() for item in state.values()] == kinds
    assert all(map(torch.equal, all_of_it(), before))
    step()
    assert all(map(torch.equal, all_of_it(), after))


def test_a_sharded_state_is_recognized(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    assert "is a DTensor" in str(what_splits(find_parts([optimizer])))


def test_a_pipeline_stage_is_recognized_as_a_part_of_the_state(model: nn.Module) -> None:
    stage = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(stage.parameters())
    pipelined = PipelineStage(stage, stage_index=0, num_stages=2, device=torch.device("cpu"))
    assert what_splits(find_parts([optimizer])) == StateSplit(SplitBy.STAGE, type(pipelined).__name__)
    whole = torch.optim.AdamW(nn.Linear(4, 4).parameters())
    assert what_splits(find_parts([whole])) is None


def test_a_complete_state_is_not_recognized_as_split() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert what_splits(find_parts([torch.optim.AdamW(model.parameters())])) is None
