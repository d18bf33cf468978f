"""Where two runs part."""

from __future__ import annotations

from mlflow_stability.diagnosis.two_runs.first_difference import parting_of
from mlflow_stability.diagnosis.two_runs.layer_comparison import lacking, layers_beside, rulers_of
from mlflow_stability.diagnosis.two_runs.layer_timeline import BY_LAYER, LayerCourse, Ruler, layer_courses

__all__ = ["BY_LAYER", "LayerCourse", "Ruler", "lacking", "layer_courses", "layers_beside", "parting_of", "rulers_of"]
