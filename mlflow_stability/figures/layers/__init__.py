"""Pictures by layer and step."""

from __future__ import annotations

from mlflow_stability.figures.layers.layer_grid import LayerGrid, LayerSketch, labels_of, quantity_title

__all__ = [
    "LayerGrid",
    "LayerSketch",
    "labels_of",
    "quantity_title",
]
