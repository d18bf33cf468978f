"""The nouns: frozen data that crosses from room to room."""

from mlflow_stability.vocabulary.event import Event, Severity
from mlflow_stability.vocabulary.milestone import Closing, Fact, Gap, Note, Opening, Reset
from mlflow_stability.vocabulary.observation import Observation, StepReading
from mlflow_stability.vocabulary.series import Series, series_by_signal
from mlflow_stability.vocabulary.settings import Settings
from mlflow_stability.vocabulary.signal import Signal

__all__ = [
    "Closing",
    "Event",
    "Fact",
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
