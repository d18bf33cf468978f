from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.performance.step_timing import Communication


def no_guard(part: str, body: Callable[..., Any]) -> Callable[..., Any]:
    return body


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_communication_is_read_from_the_timers_of_ddp_once_for_each_time_they_ran(group: None) -> None:
    model = DistributedDataParallel(nn.Linear(8, 8))
    probe = Communication(no_guard, lambda: [model])
    values = {}
    for step in range(1, 261):
        model(torch.randn(4, 8)).sum().backward()
        if probe.due(step):
            values |= {
                (step, str(s)): v
                for block in probe.blocks(step)
                for s, v in zip(block.signals, block.values, strict=True)
            }
    assert sorted({step for step, _ in values}) == [50, 150, 250]
    for step in (50, 150, 250):
        assert 0 < values[step, "communication_time"] < 5
        assert 0 <= values[step, "communication_exposed_time"] <= values[step, "communication_time"]


def test_nothing_is_measured_without_ddp() -> None:
    assert list(Communication(no_guard, lambda: [nn.Linear(2, 2)]).blocks(50)) == []


def sharded(rank: int, file: Path, values: Any, version: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    time_sharded(rank, values, version)
    # A process that ends while another still talks to it, or whose model holds on to the group, may abort at its exit.
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


def time_sharded(rank: int, values: Any, version: int) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, _flat_param, fully_shard
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

    original = DefaultAllGather.__call__, _flat_param.dist  # type: ignore[attr-defined]
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if version == 2:
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    else:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    probe = Communication(no_guard, lambda: [model])
    longest = 0.0
    for step in range(1, 206):
        began = time.perf_counter()
        model(torch.randn(4, 8)).sum().backward()
        took = time.perf_counter() - began
        now = DefaultAllGather.__call__, _flat_param.dist  # type: ignore[attr-defined]
        assert (now[0] is original[0]) == (now[1] is original[1]) == (step % 100 != 98)
        longest = took if step % 100 == 98 else longest
        if probe.due(step):
            for block in probe.blocks(step):
                (seconds,) = block.values
                assert list(map(str, block.signals)) == ["communication_time"]
                assert 0 < seconds < longest
                values.append((rank, step))
        assert probe.next_due(step) > step


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_the_collectives_of_a_sharded_model_are_timed_in_one_step_of_a_hundred(tmp_path: Path, version: int) -> None:
    with mp.get_context("spawn").Manager() as manager:
        items = manager.list()
        mp.spawn(sharded, (tmp_path / "rendezvous", items, version), nprocs=2)
        assert sorted(items) == [(0, 100), (0, 200), (1, 100), (1, 200)]
