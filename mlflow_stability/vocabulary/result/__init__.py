"""What is concluded."""

from __future__ import annotations

from mlflow_stability.vocabulary.result.action import Action
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
from mlflow_stability.vocabulary.result.diagnosis import JUDGED_LIVE, CurveReading, Diagnosis, NotJudged, Sketch
from mlflow_stability.vocabulary.result.finding import Finding, Source, Span, Where
from mlflow_stability.vocabulary.result.model_check import ActivationCheck, LayerCheck, ModelCheck, ModelFinding
from mlflow_stability.vocabulary.result.recorded_remedy import read_remedies
from mlflow_stability.vocabulary.result.remedy import Remedy, without_topics
from mlflow_stability.vocabulary.result.severity import Severity, most_severe
from mlflow_stability.vocabulary.result.statement import Statement, Text
from mlflow_stability.vocabulary.result.topic import RATE_TOPICS, SMALLER_UPDATE_TOPICS, Need, Topic
from mlflow_stability.vocabulary.result.usual_remedies import (
    CLIP_AT_1,
    LOWER_BETA2,
    LOWER_RATE,
    LOWER_RATE_2_TO_5,
    LOWER_RATE_2_TO_5_OR_CLIP,
    LOWER_RATE_3_TO_10,
    LOWER_RATE_3_TO_10_OR_WARM_UP,
    LOWER_RATE_5_TO_10,
    LOWER_RATE_OR_CLIP,
    RAISE_OR_LOWER_RATE,
    RAISE_RATE_5_TO_10,
    RAISE_TEMPERATURE_2_TO_3,
    WARM_UP_LEARNING_RATE,
)

__all__ = [
    "CLIP_AT_1",
    "JUDGED_LIVE",
    "LOWER_BETA2",
    "LOWER_RATE",
    "LOWER_RATE_2_TO_5",
    "LOWER_RATE_2_TO_5_OR_CLIP",
    "LOWER_RATE_3_TO_10",
    "LOWER_RATE_3_TO_10_OR_WARM_UP",
    "LOWER_RATE_5_TO_10",
    "LOWER_RATE_OR_CLIP",
    "RAISE_OR_LOWER_RATE",
    "RAISE_RATE_5_TO_10",
    "RAISE_TEMPERATURE_2_TO_3",
    "RATE_TOPICS",
    "SMALLER_UPDATE_TOPICS",
    "WARM_UP_LEARNING_RATE",
    "Action",
    "ActivationCheck",
    "Association",
    "BaselineGate",
    "Cause",
    "Cohort",
    "Compared",
    "Comparison",
    "CurveReading",
    "Diagnosis",
    "Difference",
    "Finding",
    "FirstDifference",
    "GateVerdict",
    "Interval",
    "LayerCheck",
    "ModelCheck",
    "ModelFinding",
    "Need",
    "NotJudged",
    "ParamPlot",
    "Rate",
    "Remedy",
    "SeedGroup",
    "Sensitivity",
    "Severity",
    "Sketch",
    "Source",
    "Span",
    "Statement",
    "SurvivalCurve",
    "Text",
    "Topic",
    "Tree",
    "Where",
    "most_severe",
    "read_remedies",
    "without_topics",
]
