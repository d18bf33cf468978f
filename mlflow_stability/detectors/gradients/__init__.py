"""Judgements of gradients."""

from __future__ import annotations

from mlflow_stability.detectors.gradients.dead_layer import DeadLayer
from mlflow_stability.detectors.gradients.gradient_explosion import GradientExplosion, GradientExplosionClassic
from mlflow_stability.detectors.gradients.gradient_vanishing import GradientVanishing
from mlflow_stability.detectors.gradients.gradient_vanishing_layers import GradientVanishingLayers
from mlflow_stability.detectors.gradients.imbalance import GradientImbalance, WeightImbalance
from mlflow_stability.detectors.gradients.layer_explosion import LayerExplosion

__all__ = [
    "DeadLayer",
    "GradientExplosion",
    "GradientExplosionClassic",
    "GradientImbalance",
    "GradientVanishing",
    "GradientVanishingLayers",
    "LayerExplosion",
    "WeightImbalance",
]
