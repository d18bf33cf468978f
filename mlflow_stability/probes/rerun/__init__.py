"""Runs a forward pass again without changing the training."""

from __future__ import annotations

from mlflow_stability.probes.rerun.forward_rerun import kept, mode_of_script, random_numbers_kept
from mlflow_stability.probes.rerun.writable_state import WritableState
from mlflow_stability.probes.rerun.written_tensors import (
    MAX_SECONDS,
    NotRunAgain,
    WrittenTensors,
    storage_of,
    version_of,
)

__all__ = [
    "MAX_SECONDS",
    "NotRunAgain",
    "WritableState",
    "WrittenTensors",
    "kept",
    "mode_of_script",
    "random_numbers_kept",
    "storage_of",
    "version_of",
]
