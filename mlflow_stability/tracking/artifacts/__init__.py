"""File formats of this package among a run's artifacts."""

from __future__ import annotations

from mlflow_stability.tracking.artifacts.attention_parts import (
    AttentionPart,
    picture_name,
    picture_of_layer,
    write_attention_part,
)
from mlflow_stability.tracking.artifacts.folders import (
    ATTENTION_FOLDER,
    DATA_FOLDER,
    EVENTS_FOLDER,
    LAYER_TABLES_FOLDER,
    MAPS_FOLDER,
    MAPS_FOLDERS,
    README,
    RECORD_FOLDER,
    RECORD_FOLDERS,
)
from mlflow_stability.tracking.artifacts.record_events import (
    LINES_PER_FILE,
    Said,
    bookkeeping_name,
    events_name,
    line_of,
)

# What loads pyarrow is imported from its own module: maps of attention are read without.
__all__ = [
    "ATTENTION_FOLDER",
    "DATA_FOLDER",
    "EVENTS_FOLDER",
    "LAYER_TABLES_FOLDER",
    "LINES_PER_FILE",
    "MAPS_FOLDER",
    "MAPS_FOLDERS",
    "README",
    "RECORD_FOLDER",
    "RECORD_FOLDERS",
    "AttentionPart",
    "Said",
    "bookkeeping_name",
    "events_name",
    "line_of",
    "picture_name",
    "picture_of_layer",
    "write_attention_part",
]
