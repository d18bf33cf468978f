"""Describes model, optimizer and torch."""

from __future__ import annotations

from mlflow_stability.probes.run_facts.training_facts import (
    MOST_GROUPS,
    MOST_OPTIMIZERS,
    autocast_now,
    group_settings,
    model_facts,
    optimizer_facts,
    scaler_facts,
    scheduler_facts,
    torch_facts,
)

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
