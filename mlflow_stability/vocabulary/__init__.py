"""Frozen dataclasses and enums that all other packages share."""

from mlflow_stability.vocabulary.measured.observation import Observation, Series, StepReading, series_by_signal
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity
from mlflow_stability.vocabulary.run.milestone import Closing, Fact, Gap, Note, Opening, Reset
from mlflow_stability.vocabulary.settings import Settings

__all__ = [
    "Closing",
    "Fact",
    "Finding",
    "Gap",
    "Note",
    "Observation",
    "Opening",
    "Reset",
    "Series",
    "Settings",
    "Severity",
    "Signal",
    "StepReading",
    "series_by_signal",
]
