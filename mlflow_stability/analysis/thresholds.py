"""Builds the usual detectors with the thresholds that somebody asked for."""

from __future__ import annotations

from dataclasses import replace

from mlflow_stability.detectors.catalog import default_detectors
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.loss_spike import LossSpike


def detectors_with(
    loss_spike: float | None = None, gradient_explosion: float | None = None
) -> tuple[Detector, ...] | None:
    """The default detectors with other limits on z for these two; None where none was asked for.

    The milder limit of a loss spike that the gradient confirms moves with the other one, and what counts as calm is
    never above a limit.
    """
    if loss_spike is None and gradient_explosion is None:
        return None
    return tuple(_with(detector, loss_spike, gradient_explosion) for detector in default_detectors())


def _with(detector: Detector, loss_spike: float | None, gradient_explosion: float | None) -> Detector:
    if isinstance(detector, LossSpike) and loss_spike is not None:
        milder = loss_spike * detector.threshold_with_gradient / detector.threshold
        calm = min(detector.calm_below, milder)
        return replace(detector, threshold=loss_spike, threshold_with_gradient=milder, calm_below=calm)
    if isinstance(detector, GradientExplosion) and gradient_explosion is not None:
        calm = min(detector.calm_below, gradient_explosion)
        return replace(detector, threshold=gradient_explosion, calm_below=calm)
    return detector
