"""MLflow inside the training process."""

from __future__ import annotations

from mlflow_stability.tracking.in_process.active_run import (
    ImplicitRunJoin,
    RunEndWatch,
    RunInProgress,
    announced_run,
    end_fluent_run,
    experiment_id,
    fluent_run,
    fluent_run_id,
    fluent_runs,
    lightning_run,
    measures_machine,
    tracking_uri,
    without_autologging,
)
from mlflow_stability.tracking.in_process.latest_run import DeliveredState, announce, latest, latest_run
from mlflow_stability.tracking.in_process.user_metrics import CLIENT, LoggedMetric, UserMetrics

__all__ = [
    "CLIENT",
    "DeliveredState",
    "ImplicitRunJoin",
    "LoggedMetric",
    "RunEndWatch",
    "RunInProgress",
    "UserMetrics",
    "announce",
    "announced_run",
    "end_fluent_run",
    "experiment_id",
    "fluent_run",
    "fluent_run_id",
    "fluent_runs",
    "latest",
    "latest_run",
    "lightning_run",
    "measures_machine",
    "tracking_uri",
    "without_autologging",
]
