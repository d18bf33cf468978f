"""What a courier asks of MLflow's client, set before the first request; what the user has set stays."""

from __future__ import annotations

import os

_WISHES = {
    # We wait and try again ourselves; MLflow's own seven attempts would block for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def ask_for_short_requests() -> None:
    """Let every request of this process end soon, well or badly."""
    for name, value in _WISHES.items():
        os.environ.setdefault(name, value)
