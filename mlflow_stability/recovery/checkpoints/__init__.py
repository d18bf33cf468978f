"""States on disk: writing, choosing, resuming."""

from __future__ import annotations

from mlflow_stability.recovery.checkpoints.checkpoint_meta import (
    STATE,
    CheckpointMeta,
    best_of,
    last_good_of,
    read_meta,
    step_of_name,
)
from mlflow_stability.recovery.checkpoints.checkpoint_reader import StoredCheckpoint, damage_of, find, listing

# What loads torch is imported from its own module: the courier and the command line list checkpoints without.
__all__ = [
    "STATE",
    "CheckpointMeta",
    "StoredCheckpoint",
    "best_of",
    "damage_of",
    "find",
    "last_good_of",
    "listing",
    "read_meta",
    "step_of_name",
]
