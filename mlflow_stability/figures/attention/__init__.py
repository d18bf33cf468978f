"""Pictures of attention."""

from __future__ import annotations

from mlflow_stability.figures.attention.attention_comparison import attention_comparison
from mlflow_stability.figures.attention.attention_entropy import LayerEntropy, attention_entropy
from mlflow_stability.figures.attention.attention_heatmap import attention_heatmap

__all__ = [
    "LayerEntropy",
    "attention_comparison",
    "attention_entropy",
    "attention_heatmap",
]
