"""Measures the memory and the utilization of the devices that a training uses, and the memory of its process.

In: optimizers before their steps, whose parameters say which devices. Out: every ten steps bytes allocated, reserved
and at the peak, and the share of the device that was in use at that peak; every hundred, where NVML can be asked, the
share of the time in which a kernel ran. Guarantees: the allocator's own counters are read, and the driver is asked once
in ten steps; neither waits for the device. No counter is reset: those are the script's.

The share is what other processes hold and what this one had allocated at its peak: what the allocator keeps in reserve
can be used again and is no pressure.
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

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.probe import PeriodicProbe, StepView
from mlflow_stability.vocabulary.measured import SignalType

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

EVERY = 10
UTILIZATION_EVERY = 100
"""Every how many steps NVML is asked: the question goes to the driver."""
FRESH_SECONDS = 0.1
"""For so long what the system said of this process is told again: asking takes as long as a tenth of a small step."""
UTILIZATION = ("gpu_utilization",)
DEVICE = ("memory_allocated", "memory_reserved", "memory_peak", "memory_share")
HOST = ("host_memory",)
COUNTED = ("cuda", "xpu")
"""The kinds of devices whose allocator counts."""
_logger = logging.getLogger(__name__)
_STATM = "/proc/self/statm"
_PAGE = resource.getpagesize()


class Memory(PeriodicProbe):
    """The memory of one training."""

    part = "memory"

    def __init__(
        self,
        utilization: Callable[[torch.device], float] = torch.cuda.utilization,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(EVERY)
        self._now = now
        self._asked_at, self._of_process = -math.inf, math.nan
        """When the system was asked for the memory of this process, and what it said."""
        self._utilization: Callable[[torch.device], float] | None = utilization
        """Percent; None where NVML, or its Python package nvidia-ml-py, is missing."""
        self._devices: dict[torch.device, None] = {}
        self._told_at = 0

    def before_step(self, view: StepView) -> None:
        """Runs when gradients are complete."""
        devices = {each.device for group in view.optimizer.param_groups for each in group["params"]}
        self._devices.update(dict.fromkeys(each for each in devices if each.type in COUNTED))

    def blocks(self, step: int) -> Sequence[Block]:
        """Bytes now, once a step."""
        if step == self._told_at:
            return ()
        self._told_at = step
        now = self._now()
        if now - self._asked_at >= FRESH_SECONDS:
            self._asked_at, self._of_process = now, process_memory()
        found = [Block(whole_signals(HOST, ""), (self._of_process,))]
        several = len(self._devices) > 1
        for device in sorted(self._devices, key=str):
            module = torch.get_device_module(device)
            place = str(device) if several else ""
            found.append(Block(whole_signals(DEVICE, place), device_memory(module, device)))
            if step % UTILIZATION_EVERY == 0 and device.type == "cuda":
                found += self.utilization(device, place)
        self._devices.clear()
        return found

    def utilization(self, device: torch.device, place: str) -> list[Block]:
        """How busy a device was lately, if anybody knows."""
        if self._utilization is None:
            return []
        try:
            share = self._utilization(device) / 100
        except Exception as error:  # torch and NVML have classes of their own for each reason why they cannot tell
            self._utilization = None
            _logger.info("GPU utilization is not recorded: %s. It needs NVML and nvidia-ml-py.", error)
            return []
        return [Block(whole_signals(UTILIZATION, place), (share,))]


def device_memory(module: Any, device: torch.device) -> tuple[float, float, float, float]:
    """Bytes allocated, reserved, allocated at the peak, and the share of the device in use at that peak."""
    counted = module.memory_stats(device)
    allocated = counted.get("allocated_bytes.all.current", 0)
    reserved = counted.get("reserved_bytes.all.current", 0)
    peak = counted.get("allocated_bytes.all.peak", 0)
    free, total = module.mem_get_info(device)
    others = max(0, total - free - reserved)
    return 1.0 * allocated, 1.0 * reserved, 1.0 * peak, min(1.0, (others + peak) / total)


def process_memory() -> float:
    """Bytes of this process in the host's memory; where the system does not tell, the most there have been."""
    try:
        page = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)  # a file object would take ten times as long
        try:
            return 1.0 * int(os.read(page, 256).split()[1]) * _PAGE
        finally:
            os.close(page)
    except OSError:  # not Linux
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return 1.0 * most * (1 if sys.platform == "darwin" else 1024)
