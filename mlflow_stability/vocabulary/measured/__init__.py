"""What is measured, and where."""

from __future__ import annotations

from mlflow_stability.vocabulary.measured.attention_map import (
    UNNAMED_LAYER,
    AttentionMap,
    attention_arrays,
    attention_map_from,
)
from mlflow_stability.vocabulary.measured.layer_comparison import (
    OUTSIDE,
    Cells,
    FirstNonFinite,
    LargestGap,
    LayerComparison,
    columns_of_run,
    logarithmic_limits,
)
from mlflow_stability.vocabulary.measured.layer_table import (
    BINS,
    LEVELS,
    NORMAL_IQR,
    PERCENTILES,
    STATISTICS,
    LayerTable,
    Shape,
    distribution_shape,
    layer_table_from,
)
from mlflow_stability.vocabulary.measured.signal import (
    LAYOUTS,
    TRACK,
    UNCLIPPED,
    Condition,
    Series,
    Signal,
    StepReading,
    is_whole_model,
    parse_condition,
    shared_layout,
)
from mlflow_stability.vocabulary.measured.signal_type import (
    Combined,
    SignalType,
    modules_with,
    signal_types,
    signals,
    type_of,
)

__all__ = [
    "BINS",
    "LAYOUTS",
    "LEVELS",
    "NORMAL_IQR",
    "OUTSIDE",
    "PERCENTILES",
    "STATISTICS",
    "TRACK",
    "UNCLIPPED",
    "UNNAMED_LAYER",
    "AttentionMap",
    "Cells",
    "Combined",
    "Condition",
    "FirstNonFinite",
    "LargestGap",
    "LayerComparison",
    "LayerTable",
    "Series",
    "Shape",
    "Signal",
    "SignalType",
    "StepReading",
    "attention_arrays",
    "attention_map_from",
    "columns_of_run",
    "distribution_shape",
    "is_whole_model",
    "layer_table_from",
    "logarithmic_limits",
    "modules_with",
    "parse_condition",
    "shared_layout",
    "signal_types",
    "signals",
    "type_of",
]
