"""What detectors are built from."""

from __future__ import annotations

from mlflow_stability.detectors.engine.baseline import Baseline
from mlflow_stability.detectors.engine.chance import FEW, MANY, stays_at_chance
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding_type import FindingType, Instability, Moves, Symptom
from mlflow_stability.detectors.engine.gradient_flow import BAND, gradient_flow
from mlflow_stability.detectors.engine.learning_rate_restart import LEAST_RISE, RateRestart
from mlflow_stability.detectors.engine.loss_fall import FIRST, LITTLE, began_at, least_that_matters
from mlflow_stability.detectors.engine.loss_level import (
    LEAST_SIZE,
    LOSS_RISE,
    keeps_changing_sign,
    take_turns,
)

__all__ = [
    "BAND",
    "FEW",
    "FIRST",
    "LEAST_RISE",
    "LEAST_SIZE",
    "LITTLE",
    "LOSS_RISE",
    "MANY",
    "Baseline",
    "Detector",
    "FindingType",
    "Instability",
    "Moves",
    "Point",
    "RateRestart",
    "Symptom",
    "began_at",
    "gradient_flow",
    "keeps_changing_sign",
    "least_that_matters",
    "stays_at_chance",
    "take_turns",
]
