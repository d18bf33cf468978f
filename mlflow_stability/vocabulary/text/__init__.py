"""Words, names and sentences."""

from __future__ import annotations

from mlflow_stability.vocabulary.text.foreign_names import HINT, said_in, unique_share_in
from mlflow_stability.vocabulary.text.harmless_text import visible
from mlflow_stability.vocabulary.text.metric_names import Meaning, meanings_of
from mlflow_stability.vocabulary.text.name_reading import (
    COARSE,
    FINE,
    HELD_OUT,
    LOSS_LIKE,
    LOSSES,
    TESTS,
    TRAIN,
    words_of,
)
from mlflow_stability.vocabulary.text.notebook_page import register_page
from mlflow_stability.vocabulary.text.phrases import (
    capitalised,
    changed,
    counted,
    factor,
    infinite,
    sentence,
    sigmas,
    times,
)
from mlflow_stability.vocabulary.text.process_ended import process_ended
from mlflow_stability.vocabulary.text.recorded_keys import LAYERS, MAIN, SECTIONS, chart_order, read_key, topic_of
from mlflow_stability.vocabulary.text.synonyms import kind_named, kinds_near
from mlflow_stability.vocabulary.text.terminal_row import to_new_row

__all__ = [
    "COARSE",
    "FINE",
    "HELD_OUT",
    "HINT",
    "LAYERS",
    "LOSSES",
    "LOSS_LIKE",
    "MAIN",
    "SECTIONS",
    "TESTS",
    "TRAIN",
    "Meaning",
    "capitalised",
    "changed",
    "chart_order",
    "counted",
    "factor",
    "infinite",
    "kind_named",
    "kinds_near",
    "meanings_of",
    "process_ended",
    "read_key",
    "register_page",
    "said_in",
    "sentence",
    "sigmas",
    "times",
    "to_new_row",
    "topic_of",
    "unique_share_in",
    "visible",
    "words_of",
]
