"""Signals in other tools: their names, and the ways there."""

from __future__ import annotations

from mlflow_stability.alerts.metrics.run_metrics import RunMetrics

__all__ = ["RunMetrics"]
