"""The dashboard of a run."""

from __future__ import annotations

from mlflow_stability.figures.run_page.curve import Curve, CurveSketch, curve_of, curve_of_values
from mlflow_stability.figures.run_page.dashboard_data import (
    GRADIENT_NORM,
    MAX_CURVES,
    QUANTITIES,
    ROLLBACK,
    DashboardData,
    Mark,
    MarkSketch,
    zone_of,
)

__all__ = [
    "GRADIENT_NORM",
    "MAX_CURVES",
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
