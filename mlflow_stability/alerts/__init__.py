"""Send alerts about events, and signals to other monitoring tools."""

from __future__ import annotations

from mlflow_stability.alerts.alert import Alert, read_alerts
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.router import AlertRouter

__all__ = ["Alert", "AlertMessage", "AlertRouter", "RunLink", "read_alerts"]
