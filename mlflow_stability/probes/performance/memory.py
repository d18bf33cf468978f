"""Memory and utilization of the devices that a training uses, and memory of its process.

The share in use counts what other processes hold and what this one had allocated at its peak: what the allocator keeps
in reserve can be used again. Guarantees: no device is waited for, and no counter is reset: those are the script's.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlflow_stability.probes.probe import PeriodicProbe, StepView
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.vocabulary.measured.signal_type import SignalType

SIGNALS = (
    SignalType(
        "memory_allocated",
        "device memory in use",
        "memory",
        exported="llm_gpu_memory_bytes",
        exported_type="allocated",
        by_device=True,
        unit="By",
    ),
    SignalType(
        "memory_reserved",
        "device memory reserved by the allocator",
        "memory",
        exported="llm_gpu_memory_bytes",
        exported_type="reserved",
        by_device=True,
        unit="By",
    ),
    SignalType(
        "memory_peak",
        "largest device memory in use",
        "memory",
        exported="llm_gpu_memory_bytes",
        exported_type="peak",
        by_device=True,
        unit="By",
    ),
    SignalType(
        "memory_share",
        "share of the device's memory in use at the peak",
        "memory",
        exported="llm_gpu_memory_share",
        by_device=True,
    ),
    SignalType(
        "host_memory", "host memory of the training process", "memory", exported="llm_host_memory_bytes", unit="By"
    ),
    SignalType(
        "gpu_utilization",
        "share of the time in which the device ran a kernel; every 100 steps; needs `mlflow-stability[gpu]`",
        "throughput",
    ),
)

EVERY_STEPS = 10
UTILIZATION_EVERY_STEPS = 100  # asking NVML goes to the driver
MIN_SECONDS_BETWEEN_READS = 0.1  # reading the memory of the process takes as long as a tenth of a small step
UTILIZATION = ("gpu_utilization",)
DEVICE = ("memory_allocated", "memory_reserved", "memory_peak", "memory_share")
HOST = ("host_memory",)
COUNTED = ("cuda", "xpu")  # devices whose allocator keeps statistics
_logger = logging.getLogger(__name__)
_STATM = "/proc/self/statm"
_PAGE = resource.getpagesize()


class Memory(PeriodicProbe):
    part = "memory"

    def __init__(
        self,
        utilization: Callable[[torch.device], float] = torch.cuda.utilization,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(EVERY_STEPS)
        self._now = now
        self._read_at, self._of_process = -math.inf, math.nan
        # Percent; None where NVML, or its Python package nvidia-ml-py, is missing.
        self._utilization: Callable[[torch.device], float] | None = utilization
        self._devices: dict[torch.device, None] = {}
        self._reported_at = 0

    def before_step(self, view: StepView) -> None:
        devices = {tensor.device for group in view.optimizer.param_groups for tensor in group["params"]}
        self._devices.update(dict.fromkeys(device for device in devices if device.type in COUNTED))

    def blocks(self, step: int) -> Sequence[Block]:
        if step == self._reported_at:
            return ()
        self._reported_at = step
        now = self._now()
        if now - self._read_at >= MIN_SECONDS_BETWEEN_READS:
            self._read_at, self._of_process = now, process_memory()
        blocks = [Block(signals_at(HOST, ""), (self._of_process,))]
        several = len(self._devices) > 1
        for device in sorted(self._devices, key=str):
            module = torch.get_device_module(device)
            place = str(device) if several else ""
            blocks.append(Block(signals_at(DEVICE, place), device_memory(module, device)))
            if step % UTILIZATION_EVERY_STEPS == 0 and device.type == "cuda":
                blocks += self.utilization(device, place)
        self._devices.clear()
        return blocks

    def utilization(self, device: torch.device, place: str) -> list[Block]:
        if self._utilization is None:
            return []
        try:
            share = self._utilization(device) / 100
        except Exception as error:  # torch and NVML have many classes of errors
            self._utilization = None
            _logger.info("GPU utilization is not recorded: %s. It needs NVML and nvidia-ml-py.", error)
            return []
        return [Block(signals_at(UTILIZATION, place), (share,))]


def device_memory(module: Any, device: torch.device) -> tuple[float, float, float, float]:
    """Return bytes allocated, reserved and at the peak, and the share of the device in use at that peak."""
    counted = module.memory_stats(device)
    allocated = counted.get("allocated_bytes.all.current", 0)
    reserved = counted.get("reserved_bytes.all.current", 0)
    peak = counted.get("allocated_bytes.all.peak", 0)
    free, total = module.mem_get_info(device)
    others = max(0, total - free - reserved)
    return 1.0 * allocated, 1.0 * reserved, 1.0 * peak, min(1.0, (others + peak) / total)


def process_memory() -> float:
    """Return the resident bytes of this process; outside Linux, their peak."""
    try:
        page = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)  # a file object would take ten times as long
        try:
            return 1.0 * int(os.read(page, 256).split()[1]) * _PAGE
        finally:
            os.close(page)
    except OSError:  # not Linux
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return 1.0 * most * (1 if sys.platform == "darwin" else 1024)
