"""Reductions over many tensors, without waiting for the device."""

from __future__ import annotations

from mlflow_stability.probes.tensors.flat_copies import copy_budget
from mlflow_stability.probes.tensors.gradient_norm import (
    gradients_of,
    is_of_one_rank,
    parameters_of,
    total_norm,
    world_size,
)

__all__ = [
    "copy_budget",
    "gradients_of",
    "is_of_one_rank",
    "parameters_of",
    "total_norm",
    "world_size",
]
