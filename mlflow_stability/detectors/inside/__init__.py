"""Judgements of activations, attention and representations."""

from __future__ import annotations

from mlflow_stability.detectors.inside.activation_nonfinite import ActivationNonfinite
from mlflow_stability.detectors.inside.attention_collapse import AttentionCollapse
from mlflow_stability.detectors.inside.attention_logit_growth import AttentionLogitGrowth
from mlflow_stability.detectors.inside.dead_expert import DeadExpert
from mlflow_stability.detectors.inside.dead_units import DeadUnits
from mlflow_stability.detectors.inside.representation_collapse import RepresentationCollapse
from mlflow_stability.detectors.inside.router_collapse import RouterCollapse
from mlflow_stability.detectors.inside.saturated_activation import SaturatedActivation
from mlflow_stability.detectors.inside.sdr_bit_usage import SdrBitUsage
from mlflow_stability.detectors.inside.sdr_collapse import SdrCollapse, SdrLowDiversity
from mlflow_stability.detectors.inside.sdr_temperature import SdrTemperature

__all__ = [
    "ActivationNonfinite",
    "AttentionCollapse",
    "AttentionLogitGrowth",
    "DeadExpert",
    "DeadUnits",
    "RepresentationCollapse",
    "RouterCollapse",
    "SaturatedActivation",
    "SdrBitUsage",
    "SdrCollapse",
    "SdrLowDiversity",
    "SdrTemperature",
]
