"""Whether a run is worse than its baseline."""

from __future__ import annotations

from mlflow_stability.diagnosis.baseline_gate.gate import gate_of

__all__ = ["gate_of"]
