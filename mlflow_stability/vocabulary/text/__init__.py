"""Words, names and sentences."""

from __future__ import annotations

from mlflow_stability.vocabulary.text.foreign_names import (
    MAY_NAME_FINDING,
    kinds_in_line,
    resolve_kind,
    similar_kinds,
    unique_share_in,
)
from mlflow_stability.vocabulary.text.metric_names import (
    COARSE,
    FINE,
    HELD_OUT,
    LOSS_LIKE,
    LOSSES,
    TESTS,
    TRAIN,
    Meaning,
    metric_meanings,
    split_words,
)
from mlflow_stability.vocabulary.text.phrases import (
    capitalised,
    changed,
    counted,
    factor,
    how_process_ended,
    infinite,
    number_text,
    sentence,
    sigmas,
    some_of,
    times,
    visible,
)
from mlflow_stability.vocabulary.text.recorded_keys import LAYERS, MAIN_CHARTS, TOPICS, chart_order, read_key, topic_of
from mlflow_stability.vocabulary.text.terminal_row import new_row_prefix

__all__ = [
    "COARSE",
    "FINE",
    "HELD_OUT",
    "LAYERS",
    "LOSSES",
    "LOSS_LIKE",
    "MAIN_CHARTS",
    "MAY_NAME_FINDING",
    "TESTS",
    "TOPICS",
    "TRAIN",
    "Meaning",
    "capitalised",
    "changed",
    "chart_order",
    "counted",
    "factor",
    "how_process_ended",
    "infinite",
    "kinds_in_line",
    "metric_meanings",
    "new_row_prefix",
    "number_text",
    "read_key",
    "resolve_kind",
    "sentence",
    "sigmas",
    "similar_kinds",
    "some_of",
    "split_words",
    "times",
    "topic_of",
    "unique_share_in",
    "visible",
]
