from __future__ import annotations

import mmap
from types import SimpleNamespace

import pytest
import torch
from torch.optim import SGD

from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.performance.memory import Memory, device_memory, process_memory
from mlflow_stability.probes.probe import StepView

GB = 2**30


def allocator(allocated: int, reserved: int, peak: int, free: int, total: int) -> SimpleNamespace:
    """What a device's module answers."""
    counted = {
        "allocated_bytes.all.current": allocated,
        "reserved_bytes.all.current": reserved,
        "allocated_bytes.all.peak": peak,
    }
    return SimpleNamespace(memory_stats=lambda device: counted, mem_get_info=lambda device: (free, total))


def test_the_share_is_what_others_hold_and_what_was_allocated_at_the_peak() -> None:
    device = torch.device("cuda:0")
    others = 5 * GB
    module = allocator(10 * GB, 60 * GB, 30 * GB, 80 * GB - 60 * GB - others, 80 * GB)
    assert device_memory(module, device) == (10 * GB, 60 * GB, 30 * GB, pytest.approx(35 / 80))


def test_a_device_that_was_full_has_a_share_of_one_and_no_more() -> None:
    assert device_memory(allocator(0, 0, 90 * GB, 0, 80 * GB), torch.device("cuda:0"))[3] == 1.0


def test_memory_that_a_process_takes_is_seen() -> None:
    before = process_memory()
    with mmap.mmap(-1, 64 * 2**20) as taken:
        for page in range(0, len(taken), mmap.PAGESIZE):
            taken[page] = 1
        assert process_memory() - before > 60 * 2**20


def test_on_a_cpu_the_memory_of_the_process_is_measured_every_ten_steps() -> None:
    memory = Memory()
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert [step for step in range(1, 31) if memory.due(step)] == [10, 20, 30]
    memory.before_step(StepView(optimizer, 10, Layers()))
    (block,) = memory.blocks(10)
    assert list(map(str, block.signals)) == ["host_memory"]
    assert memory.blocks(20)[0].signals is block.signals


def test_utilization_is_a_share_and_nvml_that_is_missing_is_asked_once() -> None:
    device = torch.device("cuda:0")
    (block,) = Memory(utilization=lambda _: 37).utilization(device, "")
    assert dict(zip(map(str, block.signals), block.values, strict=True)) == {"gpu_utilization": 0.37}
    asked = []

    def missing(_: torch.device) -> float:
        asked.append(1)
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    memory = Memory(utilization=missing)
    assert [memory.utilization(device, "") for _ in range(3)] == [[], [], []]
    assert len(asked) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_its_allocator_is_read() -> None:
    memory = Memory()
    held = torch.zeros(2**20, device="cuda", requires_grad=True)
    memory.before_step(StepView(SGD([held], lr=0.1), 10, Layers()))
    torch.cuda.set_sync_debug_mode("error")
    try:
        _, block = memory.blocks(10)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    values = dict(zip(map(str, block.signals), block.values, strict=True))
    assert values["memory_peak"] >= values["memory_allocated"] >= 4 * 2**20
    assert values["memory_reserved"] >= values["memory_allocated"]
    assert 0 < values["memory_share"] < 1
