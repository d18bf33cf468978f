"""One training step, from its backward phase to its reading."""

from __future__ import annotations

from mlflow_stability.probes.step.rolling_statistics import WINDOW, RollingStatistics
from mlflow_stability.probes.step.step_capture import StepCapture

# Readings and meters are imported from their own modules: they use other sub-packages that use this one.
__all__ = ["WINDOW", "RollingStatistics", "StepCapture"]
