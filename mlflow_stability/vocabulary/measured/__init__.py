"""What is measured, and where."""

from __future__ import annotations

from mlflow_stability.vocabulary.measured.attention_map import OF_WEIGHTS, AttentionMap, arrays_of, map_of
from mlflow_stability.vocabulary.measured.condition import Condition, condition_in
from mlflow_stability.vocabulary.measured.distribution_shape import QUARTILES_OF_NORMAL, Shape, shape_of
from mlflow_stability.vocabulary.measured.layer_table import (
    BINS,
    LEVELS,
    PERCENTILES,
    STATISTICS,
    LayerTable,
    layer_table_of,
)
from mlflow_stability.vocabulary.measured.layers_beside import (
    OUTSIDE,
    BrokenAt,
    Cells,
    Farthest,
    LayersBeside,
    own_columns,
)
from mlflow_stability.vocabulary.measured.norm_basis import UNCLIPPED
from mlflow_stability.vocabulary.measured.observation import Series, StepReading
from mlflow_stability.vocabulary.measured.signal import LAYOUTS, TRACK, Signal, of_the_whole, one_layout
from mlflow_stability.vocabulary.measured.signal_type import Combined, SignalType, modules_with, signal_types, type_of

__all__ = [
    "BINS",
    "LAYOUTS",
    "LEVELS",
    "OF_WEIGHTS",
    "OUTSIDE",
    "PERCENTILES",
    "QUARTILES_OF_NORMAL",
    "STATISTICS",
    "TRACK",
    "UNCLIPPED",
    "AttentionMap",
    "BrokenAt",
    "Cells",
    "Combined",
    "Condition",
    "Farthest",
    "LayerTable",
    "LayersBeside",
    "Series",
    "Shape",
    "Signal",
    "SignalType",
    "StepReading",
    "arrays_of",
    "condition_in",
    "layer_table_of",
    "map_of",
    "modules_with",
    "of_the_whole",
    "one_layout",
    "own_columns",
    "shape_of",
    "signal_types",
    "type_of",
]
