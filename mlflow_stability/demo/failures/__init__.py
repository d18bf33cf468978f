"""Failures that `mlflow-stability simulate` trains beside their healthy twins."""

from __future__ import annotations

from mlflow_stability.demo.failures.catalog import SIMULATIONS, known_simulation

__all__ = ["SIMULATIONS", "known_simulation"]
