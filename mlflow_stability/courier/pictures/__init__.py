"""Pictures of a recording, drawn beside the training."""

from __future__ import annotations

from mlflow_stability.courier.pictures.attention_pictures import AttentionPictures
from mlflow_stability.courier.pictures.figure_sink import FigureSink

__all__ = ["AttentionPictures", "FigureSink"]
