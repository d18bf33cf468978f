"""Runs a forward pass again without changing the training."""

from __future__ import annotations

from mlflow_stability.probes.rerun.forward_rerun import kept, mode_of_script, random_numbers_kept, unwrapped
from mlflow_stability.probes.rerun.reachable_state import ReachableState
from mlflow_stability.probes.rerun.written_tensors import (
    MOST_SECONDS,
    NotRunAgain,
    WrittenTensors,
    storage_of,
    version_of,
)

__all__ = [
    "MOST_SECONDS",
    "NotRunAgain",
    "ReachableState",
    "WrittenTensors",
    "kept",
    "mode_of_script",
    "random_numbers_kept",
    "storage_of",
    "unwrapped",
    "version_of",
]
