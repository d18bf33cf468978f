"""Smaller steps after a rollback, and gradients clipped by the training's own statistics."""

from __future__ import annotations

from mlflow_stability.recovery.easing.adaptive_clip import AdaptiveClip
from mlflow_stability.recovery.easing.easing import (
    Easing,
    EasingClip,
    EasingPlan,
    held_rates,
    rates_of,
    reset_moments,
    reset_momentum,
)

__all__ = [
    "AdaptiveClip",
    "Easing",
    "EasingClip",
    "EasingPlan",
    "held_rates",
    "rates_of",
    "reset_moments",
    "reset_momentum",
]
