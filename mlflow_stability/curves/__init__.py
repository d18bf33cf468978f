"""The metrics of a run as clean curves, and what can be read off one."""

from __future__ import annotations

from mlflow_stability.curves.main_curves import with_main_curves

__all__ = ["with_main_curves"]
