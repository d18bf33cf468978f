"""Builds the usual detectors with the sensitivity and the thresholds that somebody asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlflow_stability.detectors.catalog import default_detectors
from mlflow_stability.detectors.engine.detector import Detector
from mlflow_stability.detectors.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.loss.loss_spike import LossSpike
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.argument import one_of
from mlflow_stability.vocabulary.sensitivity import SENSITIVITIES

_SENSITIVITY = one_of(*SENSITIVITIES)["takes"]


def detectors_with(
    loss_spike: float | None = None, gradient_explosion: float | None = None, sensitivity: str = "normal"
) -> tuple[Detector, ...] | None:
    """The default detectors at this sensitivity, with other limits on z for these two; None for the usual ones.

    The milder limit of a loss spike that the gradient confirms moves with the other one, and what counts as calm is
    never above a limit. A limit below the usual one is all that is asked for: neither a least rise nor the noise's own
    tail stands in its way.
    """
    if loss_spike is None and gradient_explosion is None and sensitivity == "normal":
        return None
    detectors = at_sensitivity(default_detectors(), sensitivity)
    return tuple(_with(detector, loss_spike, gradient_explosion) for detector in detectors)


def asked_detectors(detectors: Sequence[Detector] | None, sensitivity: str) -> Sequence[Detector] | None:
    """The detectors that judge, from the two arguments of a public function; None for the usual ones."""
    sensitivity = _SENSITIVITY.checked("sensitivity", sensitivity)
    if detectors is None or sensitivity == "normal":
        return detectors_with(sensitivity=sensitivity) if detectors is None else detectors
    raise SettingsError("Give detectors= or sensitivity=, not both: each sets the thresholds.")


def _with(detector: Detector, loss_spike: float | None, gradient_explosion: float | None) -> Detector:
    if isinstance(detector, LossSpike) and loss_spike is not None:
        usual = LossSpike()
        milder = loss_spike * usual.threshold_with_gradient / usual.threshold
        calm = min(usual.calm_below, milder)
        found = replace(usual, threshold=loss_spike, threshold_with_gradient=milder, calm_below=calm)
        if loss_spike >= usual.threshold:
            return found
        of_differences = loss_spike * usual.threshold_of_differences / usual.threshold
        return replace(found, threshold_of_differences=of_differences, share_of_tail=0.0, smallest_rise=1.0)
    if isinstance(detector, GradientExplosion) and gradient_explosion is not None:
        calm = min(detector.calm_below, gradient_explosion)
        return replace(detector, threshold=gradient_explosion, calm_below=calm)
    return detector
