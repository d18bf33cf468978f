"""Judgements of activations, attention and representations."""

from __future__ import annotations

from mlflow_stability.detectors.inside.activation_nonfinite import ActivationNonfinite
from mlflow_stability.detectors.inside.attention_collapse import AttentionCollapse
from mlflow_stability.detectors.inside.dead_units import DeadUnits
from mlflow_stability.detectors.inside.saturated_activation import SaturatedActivation
from mlflow_stability.detectors.inside.sdr_collapse import SdrCollapse, SdrLowDiversity

__all__ = [
    "ActivationNonfinite",
    "AttentionCollapse",
    "DeadUnits",
    "SaturatedActivation",
    "SdrCollapse",
    "SdrLowDiversity",
]
