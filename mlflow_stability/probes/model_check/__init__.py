"""Checks a model as it is now: its settings, its values, and one batch."""

from __future__ import annotations

from mlflow_stability.probes.model_check.check import check
from mlflow_stability.probes.model_check.settings import evaluation_mode, few_rows, model_lint

__all__ = [
    "check",
    "evaluation_mode",
    "few_rows",
    "model_lint",
]
