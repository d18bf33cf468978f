"""Describes model, optimizer and torch."""

from __future__ import annotations

from mlflow_stability.probes.run_facts.model_facts import model_facts
from mlflow_stability.probes.run_facts.optimizer_facts import (
    MOST_GROUPS,
    MOST_OPTIMIZERS,
    group_settings,
    optimizer_facts,
    scheduler_facts,
)
from mlflow_stability.probes.run_facts.torch_facts import autocast_now, scaler_facts, torch_facts

__all__ = [
    "MOST_GROUPS",
    "MOST_OPTIMIZERS",
    "autocast_now",
    "group_settings",
    "model_facts",
    "optimizer_facts",
    "scaler_facts",
    "scheduler_facts",
    "torch_facts",
]
