"""Findings that are reported, not detected: their names, meanings and remedies."""

from __future__ import annotations

from mlflow_stability.detectors.reported.autopilot import (
    DataChanged,
    EarlyStopping,
    GiveUp,
    NanOrigin,
    Rollback,
    SmallerSteps,
    SpikeBatch,
)
from mlflow_stability.detectors.reported.endings import WAYS_TO_END, Stall
from mlflow_stability.detectors.reported.ranks import (
    JobRestarted,
    RankDied,
    RankNonfinite,
    RankSlowStep,
    RankSpike,
    Straggler,
)
from mlflow_stability.detectors.reported.representations import RepresentationSummary
from mlflow_stability.detectors.reported.setup import (
    BatchDiscarded,
    ConfigurationChanged,
    EvaluationMode,
    MissingZeroGrad,
    ModelLint,
    NotMeasured,
)

__all__ = [
    "WAYS_TO_END",
    "BatchDiscarded",
    "ConfigurationChanged",
    "DataChanged",
    "EarlyStopping",
    "EvaluationMode",
    "GiveUp",
    "JobRestarted",
    "MissingZeroGrad",
    "ModelLint",
    "NanOrigin",
    "NotMeasured",
    "RankDied",
    "RankNonfinite",
    "RankSlowStep",
    "RankSpike",
    "RepresentationSummary",
    "Rollback",
    "SmallerSteps",
    "SpikeBatch",
    "Stall",
    "Straggler",
]
