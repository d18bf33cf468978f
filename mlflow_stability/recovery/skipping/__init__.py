"""Skips broken steps without changing the training."""

from __future__ import annotations

from mlflow_stability.recovery.skipping.broken_step import GradientLimit
from mlflow_stability.recovery.skipping.loss_scale import calm_loss_scaler, cap_loss_scale, cut_loss_scale
from mlflow_stability.recovery.skipping.skip_count import SkipCount, SkippedBy
from mlflow_stability.recovery.skipping.step_guard import StepGuard, Verdict, Vote
from mlflow_stability.recovery.skipping.step_undo import BufferUndo

__all__ = [
    "BufferUndo",
    "GradientLimit",
    "SkipCount",
    "SkippedBy",
    "StepGuard",
    "Verdict",
    "Vote",
    "calm_loss_scaler",
    "cap_loss_scale",
    "cut_loss_scale",
]
