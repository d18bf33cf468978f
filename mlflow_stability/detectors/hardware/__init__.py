"""Judgements of time, memory and throughput."""

from __future__ import annotations

from mlflow_stability.detectors.hardware.low_mfu import LowMfu
from mlflow_stability.detectors.hardware.memory_pressure import MemoryPressure
from mlflow_stability.detectors.hardware.step_time_increase import StepTimeIncrease
from mlflow_stability.detectors.hardware.throughput_drop import ThroughputDrop

__all__ = [
    "LowMfu",
    "MemoryPressure",
    "StepTimeIncrease",
    "ThroughputDrop",
]
