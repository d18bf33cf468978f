"""The dashboard of a run."""

from __future__ import annotations

from mlflow_stability.figures.run_page.curve import Curve, CurveSketch, curve_of, curve_of_values
from mlflow_stability.figures.run_page.dashboard_data import MOST_CURVES, QUANTITIES, DashboardData
from mlflow_stability.figures.run_page.mark import ROLLBACK, Mark, MarkSketch
from mlflow_stability.figures.run_page.zone import GRADIENT_NORM, zone_of

__all__ = [
    "GRADIENT_NORM",
    "MOST_CURVES",
    "QUANTITIES",
    "ROLLBACK",
    "Curve",
    "CurveSketch",
    "DashboardData",
    "Mark",
    "MarkSketch",
    "curve_of",
    "curve_of_values",
    "zone_of",
]
