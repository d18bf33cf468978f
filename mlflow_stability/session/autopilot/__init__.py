"""Skipped steps, snapshots and rollbacks, decided together by all ranks."""

from __future__ import annotations

from mlflow_stability.session.autopilot.autopilot_config import autopilot_config_of
from mlflow_stability.session.autopilot.autopilot_lifecycle import AutopilotLifecycle

__all__ = ["AutopilotLifecycle", "autopilot_config_of"]
