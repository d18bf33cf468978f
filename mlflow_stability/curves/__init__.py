"""The metrics of a run as clean curves, and functions of one curve."""

from __future__ import annotations

from mlflow_stability.curves.main_curves import with_main_curves

__all__ = ["with_main_curves"]
