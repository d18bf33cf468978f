"""Finds the operation that made the first NaN or infinity."""

from __future__ import annotations

from mlflow_stability.recovery.nan_origin.batch_capture import BatchCapture, CapturedBatch
from mlflow_stability.recovery.nan_origin.batch_facts import facts_of, save_batch
from mlflow_stability.recovery.nan_origin.batch_replay import replay_step
from mlflow_stability.recovery.nan_origin.batch_rerun import Replay
from mlflow_stability.recovery.nan_origin.origin_checks import KIND, origin_event

__all__ = [
    "KIND",
    "BatchCapture",
    "CapturedBatch",
    "Replay",
    "facts_of",
    "origin_event",
    "replay_step",
    "save_batch",
]
