"""Pictures by layer and step."""

from __future__ import annotations

from mlflow_stability.figures.layers.histogram_ridge import histogram_ridges
from mlflow_stability.figures.layers.layer_grid import LayerGrid, LayerSketch
from mlflow_stability.figures.layers.layer_heatmap import layer_heatmap
from mlflow_stability.figures.layers.layer_label import labels_of
from mlflow_stability.figures.layers.layers_beside import layers_beside

__all__ = ["LayerGrid", "LayerSketch", "histogram_ridges", "labels_of", "layer_heatmap", "layers_beside"]
