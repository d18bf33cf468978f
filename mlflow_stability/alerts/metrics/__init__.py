"""Signals in other tools: their names, and the ways there."""

from __future__ import annotations

from mlflow_stability.alerts.metrics.exporters import INSTALL, PrometheusExporter
from mlflow_stability.alerts.metrics.mirrors import OTEL, TENSORBOARD, Mirror, read_mirrors
from mlflow_stability.alerts.metrics.run_metrics import RunMetrics

# Writers and exporters that only the courier needs are imported from their own modules.
__all__ = ["INSTALL", "OTEL", "TENSORBOARD", "Mirror", "PrometheusExporter", "RunMetrics", "read_mirrors"]
