"""Judgements of gradients."""

from __future__ import annotations

from mlflow_stability.detectors.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.gradients.gradient_vanishing import GradientVanishing
from mlflow_stability.detectors.gradients.gradient_vanishing_layers import GradientVanishingLayers
from mlflow_stability.detectors.gradients.imbalance import GradientImbalance, WeightImbalance
from mlflow_stability.detectors.gradients.layer_explosion import LayerExplosion

__all__ = [
    "GradientExplosion",
    "GradientImbalance",
    "GradientVanishing",
    "GradientVanishingLayers",
    "LayerExplosion",
    "WeightImbalance",
]
