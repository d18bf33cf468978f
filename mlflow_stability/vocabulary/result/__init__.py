"""What is concluded: names of the modules of this package, which are imported from here."""

# ruff: noqa: F401

from __future__ import annotations

from mlflow_stability.vocabulary.result.action import Action
from mlflow_stability.vocabulary.result.comparison import (
    Association,
    BaselineGate,
    Cohort,
    Compared,
    Comparison,
    Difference,
    FirstDifference,
    GateVerdict,
    Interval,
    ParamPlot,
    Rate,
    SeedGroup,
    Sensitivity,
    SurvivalCurve,
)
from mlflow_stability.vocabulary.result.diagnosis import (
    JUDGED_LIVE,
    AskedCurves,
    CurveReading,
    Diagnosis,
    JudgedCurves,
    NotJudged,
    Sketch,
    register_page,
)
from mlflow_stability.vocabulary.result.finding import (
    Cause,
    Finding,
    Severity,
    Source,
    Span,
    Statement,
    Text,
    Where,
    most_severe,
)
from mlflow_stability.vocabulary.result.model_check import ActivationCheck, LayerCheck, ModelCheck, ModelFinding
from mlflow_stability.vocabulary.result.remedy import (
    CLEARLY_ABOVE_USUAL,
    CLIP_GRADIENTS,
    FIT_SCHEDULE,
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
    Remedy,
    clipping_norm,
    read_remedies,
    without_topics,
)
from mlflow_stability.vocabulary.result.run_card import (
    LOST_OUTCOMES,
    PROCESS_KINDS,
    STEADY_KINDS,
    LossLevels,
    Mark,
    RunCard,
    card_from_json,
    card_to_json,
)
from mlflow_stability.vocabulary.result.topic import RATE_TOPICS, SMALLER_UPDATE_TOPICS, Need, Topic
