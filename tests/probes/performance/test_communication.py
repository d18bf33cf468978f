from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.performance.communication import Communication


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_communication_is_read_from_the_timers_of_ddp_once_for_each_time_they_ran(group: None) -> None:
    model = DistributedDataParallel(nn.Linear(8, 8))
    probe = Communication(lambda: [model])
    told = {}
    for step in range(1, 261):
        model(torch.randn(4, 8)).sum().backward()
        if probe.due(step):
            told |= {
                (step, str(s)): v for each in probe.blocks(step) for s, v in zip(each.signals, each.values, strict=True)
            }
    assert sorted({step for step, _ in told}) == [50, 150, 250]
    for step in (50, 150, 250):
        assert 0 < told[step, "communication_time"] < 5
        assert 0 <= told[step, "communication_exposed_time"] <= told[step, "communication_time"]


def test_without_ddp_nothing_is_told() -> None:
    assert list(Communication(lambda: [nn.Linear(2, 2)]).blocks(50)) == []
