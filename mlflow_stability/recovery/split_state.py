"""Knows whether the state of a training is split over several processes, so that none of them holds all of it.

In: the parts of a training. Out: a word for what splits it; empty where it does not. Promised: nothing is asked of
other processes.
"""

from __future__ import annotations

from torch.nn import Module

from mlflow_stability.recovery.host_copy import local_part
from mlflow_stability.recovery.training_parts import TrainingParts

_SPLITTING = ("FullyShardedDataParallel", "ZeroRedundancyOptimizer")
"""Kinds of modules and optimizers that split what they hold without saying so of their tensors."""


def what_splits(parts: TrainingParts) -> str:
    """``FSDP``-like modules, sharded parameters, or optimizers that share their state out among processes."""
    for optimizer in parts.optimizers:
        if type(optimizer).__name__ in _SPLITTING:
            return type(optimizer).__name__
    for model in parts.models:
        for module in Module.modules(model):
            if type(module).__name__ in _SPLITTING:
                return type(module).__name__
        for name, parameter in Module.named_parameters(model):
            if local_part(parameter) is not parameter:
                return f"parameter {name} is a {type(parameter).__name__}"
    return ""
