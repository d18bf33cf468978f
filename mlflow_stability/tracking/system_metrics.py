"""Switches MLflow's own measurements of the machine on for a run: processors, memory, disk, network, GPUs.

In: a run id and where it lives. Out: metrics ``system/…`` of that run, as `mlflow.enable_system_metrics_logging` gives
them. Promised: nothing of them is measured or named by us; where MLflow cannot measure, it says so in its log and the
rest of the delivery goes on.
"""

from __future__ import annotations

from typing import Any

from mlflow.system_metrics import system_metrics_monitor

_monitors: Any = system_metrics_monitor  # it carries no types


class SystemMetrics:
    """MLflow's monitor of one run."""

    def __init__(self, run_id: str, tracking_uri: str) -> None:
        # A run that goes on has points already: theirs are followed, not written over.
        self._monitor = _monitors.SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=tracking_uri)
        self._monitor.start()

    def finish(self) -> None:
        """End the measurements and send what is left of them."""
        self._monitor.finish()
