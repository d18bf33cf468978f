"""What to change."""

from __future__ import annotations

from mlflow_stability.diagnosis.advice.applicable import with_fitting_remedies
from mlflow_stability.diagnosis.advice.remedies import remedies_of

__all__ = ["remedies_of", "with_fitting_remedies"]
