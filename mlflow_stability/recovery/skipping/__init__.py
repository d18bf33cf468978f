"""Skips broken steps without changing the training."""

from __future__ import annotations

from mlflow_stability.recovery.skipping.broken_step_flag import local_part
from mlflow_stability.recovery.skipping.gradient_limit import GradientLimit
from mlflow_stability.recovery.skipping.skip_count import (
    SkipCount,
    SkippedBy,
    calm_loss_scaler,
    cap_loss_scale,
    cut_loss_scale,
)
from mlflow_stability.recovery.skipping.step_guard import StepGuard, Verdict, Vote
from mlflow_stability.recovery.skipping.step_undo import BufferUndo, PutBack, copy_bookkeeping
from mlflow_stability.recovery.skipping.step_values import values_before_step

__all__ = [
    "BufferUndo",
    "GradientLimit",
    "PutBack",
    "SkipCount",
    "SkippedBy",
    "StepGuard",
    "Verdict",
    "Vote",
    "calm_loss_scaler",
    "cap_loss_scale",
    "copy_bookkeeping",
    "cut_loss_scale",
    "local_part",
    "values_before_step",
]
