"""One run, and what is known of it."""

from __future__ import annotations

from mlflow_stability.vocabulary.run.attempts import attempts_of, in_order
from mlflow_stability.vocabulary.run.found_run import FoundRun
from mlflow_stability.vocabulary.run.judged_curves import AskedCurves, JudgedCurves
from mlflow_stability.vocabulary.run.milestone import Closing, Fact, Gap, Note, Opening, Reset, Returned
from mlflow_stability.vocabulary.run.outcome import RUN_STATUS
from mlflow_stability.vocabulary.run.run_card import (
    LOST,
    OF_THE_PROCESS,
    STEADY,
    LossLevels,
    Mark,
    RunCard,
    card_of,
    text_of,
)
from mlflow_stability.vocabulary.run.run_history import DAMAGED, Metric, RunHead, RunHistory

__all__ = [
    "DAMAGED",
    "LOST",
    "OF_THE_PROCESS",
    "RUN_STATUS",
    "STEADY",
    "AskedCurves",
    "Closing",
    "Fact",
    "FoundRun",
    "Gap",
    "JudgedCurves",
    "LossLevels",
    "Mark",
    "Metric",
    "Note",
    "Opening",
    "Reset",
    "Returned",
    "RunCard",
    "RunHead",
    "RunHistory",
    "attempts_of",
    "card_of",
    "in_order",
    "text_of",
]
