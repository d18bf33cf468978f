"""Where two runs part."""

from __future__ import annotations

from mlflow_stability.diagnosis.two_runs.first_difference import first_difference_of
from mlflow_stability.diagnosis.two_runs.layer_comparison import lacking, layers_beside, step_columns_of
from mlflow_stability.diagnosis.two_runs.layer_timeline import BY_LAYER, LayerCourse, StepColumns, layer_courses

__all__ = [
    "BY_LAYER",
    "LayerCourse",
    "StepColumns",
    "first_difference_of",
    "lacking",
    "layer_courses",
    "layers_beside",
    "step_columns_of",
]
