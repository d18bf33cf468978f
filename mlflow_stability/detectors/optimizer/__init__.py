"""Judgements of steps, learning rate and weights."""

from __future__ import annotations

from mlflow_stability.detectors.optimizer.adam_rms_high import AdamRmsHigh
from mlflow_stability.detectors.optimizer.learning_rate_jump import LearningRateJump
from mlflow_stability.detectors.optimizer.learning_rate_out_of_range import LearningRateOutOfRange
from mlflow_stability.detectors.optimizer.loss_scale_collapse import LossScaleCollapse
from mlflow_stability.detectors.optimizer.step_skipped import StepSkipped
from mlflow_stability.detectors.optimizer.update_ratio import UpdateRatioHigh, UpdateRatioLow
from mlflow_stability.detectors.optimizer.weight_spike import WeightSpike

__all__ = [
    "AdamRmsHigh",
    "LearningRateJump",
    "LearningRateOutOfRange",
    "LossScaleCollapse",
    "StepSkipped",
    "UpdateRatioHigh",
    "UpdateRatioLow",
    "WeightSpike",
]
