"""Reductions over many tensors, without waiting for the device."""

from mlflow_stability.probes.tensors.gradient_norm import (
    gradients_of,
    is_of_one_rank,
    is_split,
    parameters_of,
    total_norm,
    world_size,
)

__all__ = ["gradients_of", "is_of_one_rank", "is_split", "parameters_of", "total_norm", "world_size"]
