"""States on disk: writing, choosing, resuming."""

from __future__ import annotations

from mlflow_stability.recovery.checkpoints.stored_checkpoints import (
    STATE,
    CheckpointMeta,
    StoredCheckpoint,
    best_of,
    damage_of,
    find,
    folder_of_job,
    last_good_of,
    listing,
    owner_lives,
    read_meta,
    read_owner,
    step_of_name,
)

# What loads torch is imported from its own module: the courier and the command line list checkpoints without.
__all__ = [
    "STATE",
    "CheckpointMeta",
    "StoredCheckpoint",
    "best_of",
    "damage_of",
    "find",
    "folder_of_job",
    "last_good_of",
    "listing",
    "owner_lives",
    "read_meta",
    "read_owner",
    "step_of_name",
]
