"""Writes the journal of a run and runs its detectors."""

from __future__ import annotations

from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.session.recording.script_metrics import ScriptMetric, ScriptMetrics
from mlflow_stability.session.recording.unseen_training import UnseenTraining

__all__ = ["Recording", "ScriptMetric", "ScriptMetrics", "UnseenTraining"]
