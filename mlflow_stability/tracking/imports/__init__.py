"""Imports logs of other tools as runs."""

from __future__ import annotations

from mlflow_stability.tracking.imports.run_import import COUNTED, TIMES, RunImport

__all__ = ["COUNTED", "TIMES", "RunImport"]
