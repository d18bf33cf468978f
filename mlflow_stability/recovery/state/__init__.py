"""Copies and restores the state of a training, in place."""

from __future__ import annotations

from mlflow_stability.recovery.state.host_copy import free_memory, is_finite
from mlflow_stability.recovery.state.restore import RestoreChoice, RestorePlan, TornState, misfit
from mlflow_stability.recovery.state.snapshot_ring import SnapshotRing
from mlflow_stability.recovery.state.state_copy import (
    StateCopy,
    bytes_of_state,
    copy_state,
    with_new_optimizer,
    with_what_followed,
)
from mlflow_stability.recovery.state.training_parts import (
    SplitBy,
    StateSplit,
    TrainingParts,
    WeakTrainingParts,
    any_shards,
    find_parts,
    what_splits,
)
from mlflow_stability.recovery.state.value_tree import map_tensors

__all__ = [
    "RestoreChoice",
    "RestorePlan",
    "SnapshotRing",
    "SplitBy",
    "StateCopy",
    "StateSplit",
    "TornState",
    "TrainingParts",
    "WeakTrainingParts",
    "any_shards",
    "bytes_of_state",
    "copy_state",
    "find_parts",
    "free_memory",
    "is_finite",
    "map_tensors",
    "misfit",
    "what_splits",
    "with_new_optimizer",
    "with_what_followed",
]
