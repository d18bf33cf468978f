"""Finds the checkpoints that earlier attempts of this job have left, where a launcher has started it again.

In: the journal's folder. Out: the folder of the newest attempt that left any. Guarantees: all processes of a training
use the same one, or none; a process waits for the first one for a minute at most.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.journal.launched_job import launched_job, marked_folders
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.recovery.checkpoints.checkpoint_reader import listing
from mlflow_stability.vocabulary.settings import CHECKPOINTS_FOLDER

AGREE_SECONDS = 60.0
"""For how long a process waits for the first one to say where the checkpoints are."""
_asked = count()
"""How often this process has restored: each time is another question."""


def folder_of_job(root: Path) -> Path | None:
    """As this process sees it; None where there was no attempt before, or it left nothing."""
    job = launched_job()
    if job is None or not job.restarts:
        return None
    folders = marked_folders(root / CHECKPOINTS_FOLDER, job)
    return next((each for each in folders if any(found.meta is not None for found in listing(each))), None)


def agreed_folder_of_job(root: Path) -> Path | None:
    """As the first process sees it, for on another machine the job has another name."""
    distributed, job = torch.distributed, launched_job()
    if job is None or not job.restarts:
        return None
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return folder_of_job(root)
    store, key = torch_api.default_store(), f"mlflow_stability/{job.restarts}/restore/{next(_asked)}"
    if distributed.get_rank() == 0:
        found = folder_of_job(root)
        store.set(key, str(found or ""))
        return found
    try:
        store.wait([key], timedelta(seconds=AGREE_SECONDS))
    except RuntimeError as error:
        raise CheckpointsRefused(
            f"The first rank did not call restore() within {AGREE_SECONDS:g} s: call it on every rank."
        ) from error
    said: Any = store.get(key)
    return Path(bytes(said).decode()) if said else None
