"""Judgements of the loss."""

from __future__ import annotations

from mlflow_stability.detectors.loss.divergence import Divergence, DivergenceClassic
from mlflow_stability.detectors.loss.divergence_ahead import DivergenceAhead
from mlflow_stability.detectors.loss.divergence_at_start import DivergenceAtStart
from mlflow_stability.detectors.loss.loss_spike import LossSpike, LossSpikeClassic
from mlflow_stability.detectors.loss.nonfinite import InfDetected, NanDetected
from mlflow_stability.detectors.loss.oscillation import Oscillation
from mlflow_stability.detectors.loss.overfitting import Overfitting
from mlflow_stability.detectors.loss.plateau import Plateau
from mlflow_stability.detectors.loss.repeated_data import ConstantOutput, RepeatedData
from mlflow_stability.detectors.loss.slow_progress import SlowProgress

__all__ = [
    "ConstantOutput",
    "Divergence",
    "DivergenceAhead",
    "DivergenceAtStart",
    "DivergenceClassic",
    "InfDetected",
    "LossSpike",
    "LossSpikeClassic",
    "NanDetected",
    "Oscillation",
    "Overfitting",
    "Plateau",
    "RepeatedData",
    "SlowProgress",
]
