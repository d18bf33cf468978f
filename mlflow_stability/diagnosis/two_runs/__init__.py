"""Where two runs part."""

from __future__ import annotations

from mlflow_stability.diagnosis.two_runs.first_difference import first_difference_of
from mlflow_stability.diagnosis.two_runs.layer_comparison import lacking, layers_beside, rulers_of
from mlflow_stability.diagnosis.two_runs.layer_timeline import BY_LAYER, LayerCourse, Ruler, layer_courses

__all__ = [
    "BY_LAYER",
    "LayerCourse",
    "Ruler",
    "first_difference_of",
    "lacking",
    "layer_courses",
    "layers_beside",
    "rulers_of",
]
