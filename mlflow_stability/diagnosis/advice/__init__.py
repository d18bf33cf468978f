"""What to change."""

from __future__ import annotations

from mlflow_stability.diagnosis.advice.applicable import with_fitting_remedies
from mlflow_stability.diagnosis.advice.recorded_settings import RecordedSettings, excluded, is_adam, settings_of
from mlflow_stability.diagnosis.advice.remedies import AGAINST, remedies_of

__all__ = ["AGAINST", "RecordedSettings", "excluded", "is_adam", "remedies_of", "settings_of", "with_fitting_remedies"]
