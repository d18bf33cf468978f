"""Every judgement there is, in the order in which they look."""

from __future__ import annotations

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.inf_detected import InfDetected
from mlflow_stability.detectors.nan_detected import NanDetected

DETECTORS: tuple[type[Detector], ...] = (NanDetected, InfDetected)


def default_detectors() -> tuple[Detector, ...]:
    """All of them, with their default thresholds."""
    return tuple(detector() for detector in DETECTORS)
