"""Keys of recorded metrics in MLflow, of this version and of older ones.

MLflow draws one section of charts for each part up to the last slash: the main charts are in the first one.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mlflow_stability.vocabulary.measured.signal_type import type_of

MAIN_CHARTS = (
    "loss",
    "loss_max",
    "grad_norm",
    "grad_norm_max",
    "learning_rate",
    "update_ratio",
    "nonfinite_values",
    "skipped_steps",
)
"""Quantities of the main charts, in the order in which reports show them."""
TOPICS = (
    *("loss_statistics", "gradients", "optimizer", "throughput", "timing", "memory"),
    *("attention", "activations", "representations", "routing", "other"),
)
"""Topics of the other charts; each signal declares its own. None has the name of a quantity of `MAIN_CHARTS`: in a file
store `stability/loss` would be a file and a folder."""
OTHER = "other"
LAYERS = "layers"
_PREFIX = r"(?P<prefix>stability(?:_[2-9]|_[1-9]\d+)?)/"
_QUANTITY = r"(?P<quantity>[^/]+)"
_QUANTITY_IN_PLACE = r"(?P<quantity>[^/.]+)(?:\.(?P<place>[^/]+))?"
_TRACK = r"(?P<place>track_[^/]+)/"
_NUMBERED = rf"[1-8]_(?P<quantity>{'|'.join(MAIN_CHARTS)})"
KEYS = {
    "stability/loss": rf"{_PREFIX}(?P<quantity>{'|'.join(MAIN_CHARTS)})",
    "stability/loss_statistics/loss_ema": rf"{_PREFIX}(?:{'|'.join(TOPICS)})/{_QUANTITY_IN_PLACE}",
    "stability/layers/grad_norm/blocks.3": rf"{_PREFIX}{LAYERS}/{_QUANTITY}/(?P<place>[^/]+)",
    "stability/track_critic/loss": _PREFIX + _TRACK + _QUANTITY,
}
"""The pattern of each kind of key, by an example."""
OLD_KEYS = {
    # Before 1.0, the main charts were numbered:
    "stability/1_loss": _PREFIX + _NUMBERED,
    "stability/track_critic/1_loss": _PREFIX + _TRACK + _NUMBERED,
    "stability/loss/loss_ema": rf"{_PREFIX}loss/{_QUANTITY_IN_PLACE}",
    # In 0.1.0 no quantity had a topic:
    "stability/step_time": _PREFIX + _QUANTITY,
    "stability/grad_norm_by_layer/blocks.3": rf"{_PREFIX}(?P<quantity>[^/]+?)_by_(?:layer|group)/(?P<place>.+)",
}
"""The pattern of each kind of key that only older versions wrote."""
_PATTERNS = [re.compile(pattern) for pattern in (*OLD_KEYS.values(), *KEYS.values())]


@lru_cache(maxsize=4096)
def topic_of(quantity: str) -> str:
    """Return the topic of a quantity of the whole model; empty for the main charts."""
    if quantity in MAIN_CHARTS:
        return ""
    signal_type = type_of(quantity)
    return OTHER if signal_type is None else signal_type.topic


def read_key(key: str) -> tuple[str, str, str] | None:
    """Return prefix, quantity and place: ``stability``, ``grad_norm``, ``blocks.3.attn``; None for other keys."""
    match = next(filter(None, (pattern.fullmatch(key) for pattern in _PATTERNS)), None)
    return None if match is None else (match["prefix"], match["quantity"], match.groupdict().get("place") or "")


def chart_order(key: str) -> tuple[int, str]:
    """Sort key: the main charts first, in their order, and all others by name."""
    _, quantity, place = read_key(key) or ("", "", "")
    return (MAIN_CHARTS.index(quantity) if quantity in MAIN_CHARTS and not place else len(MAIN_CHARTS)), key
