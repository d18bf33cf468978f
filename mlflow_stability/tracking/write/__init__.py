"""Writes into one run."""

from __future__ import annotations

from mlflow_stability.tracking.write.layer_metrics import LayerMetrics, chosen_signals
from mlflow_stability.tracking.write.recording_claim import (
    RecordingTag,
    claim_place,
    earlier_left,
    place_among,
    recordings_in,
    tag_name,
)
from mlflow_stability.tracking.write.run_checkpoints import RunCheckpoints
from mlflow_stability.tracking.write.run_description import section_of
from mlflow_stability.tracking.write.run_images import RunImages, image_key
from mlflow_stability.tracking.write.run_params import is_chosen
from mlflow_stability.tracking.write.run_report import REPORT_FOLDER, log_comparison, log_report
from mlflow_stability.tracking.write.run_writer import RunWriter, SystemMetrics
from mlflow_stability.tracking.write.single_values import SingleValues
from mlflow_stability.tracking.write.thinning import Point, Thinner, is_of_the_script

__all__ = [
    "REPORT_FOLDER",
    "LayerMetrics",
    "Point",
    "RecordingTag",
    "RunCheckpoints",
    "RunImages",
    "RunWriter",
    "SingleValues",
    "SystemMetrics",
    "Thinner",
    "chosen_signals",
    "claim_place",
    "earlier_left",
    "image_key",
    "is_chosen",
    "is_of_the_script",
    "log_comparison",
    "log_report",
    "place_among",
    "recordings_in",
    "section_of",
    "tag_name",
]
