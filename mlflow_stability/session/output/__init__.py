"""What a training prints: one line at its beginning, each trouble once, every rollback, one line at its end."""

from __future__ import annotations

from mlflow_stability.session.output.progress_line import ProgressLine
from mlflow_stability.session.output.training_output import DeliveredRun, TrainingOutput, delivered_run

__all__ = ["DeliveredRun", "ProgressLine", "TrainingOutput", "delivered_run"]
