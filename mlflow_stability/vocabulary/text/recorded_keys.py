"""Reads the keys under which recordings keep their metrics in MLflow, of this version and of older ones.

In: a key. Out: the recording's section, the quantity and the place; None where it is no key of ours. MLflow draws one
section for each prefix up to the last slash, and sorts sections and charts by their names: the charts that matter most
are numbered, and stand in the first section.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mlflow_stability.vocabulary.measured.signal_type import type_of

MAIN = (
    "loss",
    "loss_max",
    "grad_norm",
    "grad_norm_max",
    "learning_rate",
    "update_ratio",
    "nonfinite_values",
    "skipped_steps",
)
"""The charts of the first section, in their order."""
SECTIONS = (
    *("loss", "gradients", "optimizer", "throughput", "timing", "memory"),
    *("attention", "activations", "representations", "routing", "other"),
)
"""The further sections. A signal's own file says in which one it is."""
OTHER = "other"
LAYERS = "layers"
_KEY = re.compile(
    r"(?P<section>stability(?:_[2-9]|_[1-9]\d+)?)/"
    rf"(?:{LAYERS}/(?P<by_layer>[^/]+)/(?P<layer>[^/]+)"
    r"|(?P<track>track_[^/]+)/(?:\d_)?(?P<of_track>[^/]+)"
    rf"|(?:{'|'.join(SECTIONS)})/(?P<quantity>[^/.]+)(?:\.(?P<place>[^/]+))?"
    r"|(?:\d_)?(?P<main>[^/]+))"
)
_BEFORE = re.compile(r"(?P<section>stability(?:_\d+)?)/(?P<quantity>[^/]+?)_by_(?:layer|group)/(?P<place>.+)")
"""Keys of version 0.1, beside `stability/loss`."""


@lru_cache(maxsize=4096)
def topic_of(quantity: str) -> str:
    """The section that a quantity of the whole model is in; empty for those of the first one."""
    if quantity in MAIN:
        return ""
    known = type_of(quantity)
    return OTHER if known is None else known.section


def chart_of(quantity: str) -> str:
    """The name of its chart: ``1_loss``, so that the charts that matter keep their order wherever names are sorted."""
    return f"{MAIN.index(quantity) + 1}_{quantity}" if quantity in MAIN else quantity


def read_key(key: str) -> tuple[str, str, str] | None:
    """Section, quantity and place: ``stability``, ``grad_norm``, ``blocks.3.attn``."""
    before = _BEFORE.fullmatch(key)
    if before is not None:
        return before["section"], before["quantity"], before["place"]
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    quantity = found["by_layer"] or found["of_track"] or found["quantity"] or found["main"]
    return found["section"], quantity, found["layer"] or found["track"] or found["place"] or ""
