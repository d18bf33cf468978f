"""What is concluded."""

from __future__ import annotations

from mlflow_stability.vocabulary.result.cause import Cause
from mlflow_stability.vocabulary.result.cohort import (
    Association,
    Cohort,
    Interval,
    ParamPlot,
    SeedGroup,
    Sensitivity,
    SurvivalCurve,
    Tree,
)
from mlflow_stability.vocabulary.result.comparison import (
    BaselineGate,
    Compared,
    Comparison,
    Difference,
    FirstDifference,
    GateVerdict,
    Rate,
)
from mlflow_stability.vocabulary.result.diagnosis import JUDGED_LIVE, CurveReading, Diagnosis, Sketch
from mlflow_stability.vocabulary.result.episode import Episode
from mlflow_stability.vocabulary.result.event import Event, Finding, Severity, most_severe
from mlflow_stability.vocabulary.result.model_check import LayerCheck, ModelCheck, ModelFinding

__all__ = [
    "JUDGED_LIVE",
    "Association",
    "BaselineGate",
    "Cause",
    "Cohort",
    "Compared",
    "Comparison",
    "CurveReading",
    "Diagnosis",
    "Difference",
    "Episode",
    "Event",
    "Finding",
    "FirstDifference",
    "GateVerdict",
    "Interval",
    "LayerCheck",
    "ModelCheck",
    "ModelFinding",
    "ParamPlot",
    "Rate",
    "SeedGroup",
    "Sensitivity",
    "Severity",
    "Sketch",
    "SurvivalCurve",
    "Tree",
    "most_severe",
]
