"""The dashboard of a run."""

from __future__ import annotations

from mlflow_stability.figures.run_page.curve import Curve, CurveSketch, curve_of, fitted
from mlflow_stability.figures.run_page.dashboard import dashboard
from mlflow_stability.figures.run_page.dashboard_data import MOST_CURVES, QUANTITIES, DashboardData
from mlflow_stability.figures.run_page.mark import ROLLBACK, Mark, MarkSketch

__all__ = [
    "MOST_CURVES",
    "QUANTITIES",
    "ROLLBACK",
    "Curve",
    "CurveSketch",
    "DashboardData",
    "Mark",
    "MarkSketch",
    "curve_of",
    "dashboard",
    "fitted",
]
