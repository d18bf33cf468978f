"""SPAMAdam and a conservative loss scaler."""

from __future__ import annotations

from mlflow_stability.recovery.extras.conservative_scaler import (
    GROWTH_FACTOR,
    GROWTH_INTERVAL,
    conservative_grad_scaler,
)
from mlflow_stability.recovery.extras.spam_adam import SPAMAdam

__all__ = ["GROWTH_FACTOR", "GROWTH_INTERVAL", "SPAMAdam", "conservative_grad_scaler"]
