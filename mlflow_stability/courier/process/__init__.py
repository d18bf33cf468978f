"""The claim on a session, and whether its training process is alive."""

from __future__ import annotations

from mlflow_stability.courier.process.claim import holder_lives
from mlflow_stability.courier.process.environment import ask_for_short_requests
from mlflow_stability.courier.process.training_process import process_of

__all__ = ["ask_for_short_requests", "holder_lives", "process_of"]
