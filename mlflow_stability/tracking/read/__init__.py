"""Reads runs back."""

from __future__ import annotations

from mlflow_stability.tracking.read.run_record import RunRecord
from mlflow_stability.tracking.read.stored_attention import StoredAttention, attention_of_folder, attention_of_run

# What loads MLflow or pyarrow is imported from its own module: a folder is read without MLflow.
__all__ = ["RunRecord", "StoredAttention", "attention_of_folder", "attention_of_run"]
