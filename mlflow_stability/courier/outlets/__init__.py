"""Sinks beside the run: alerts to people, metrics to other tools."""

from __future__ import annotations

from mlflow_stability.courier.outlets.outlet import OutletPlan, outlet_plan
from mlflow_stability.courier.outlets.outlets import Outlets

__all__ = ["OutletPlan", "Outlets", "outlet_plan"]
