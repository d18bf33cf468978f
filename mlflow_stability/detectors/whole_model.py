"""Tells the whole model's values from those of a layer, for quantities that are measured by layer."""

from __future__ import annotations

from mlflow_stability.vocabulary.signal import Signal, of_the_whole

BY_LAYER = frozenset({"adam_rms", "grad_norm", "param_norm", "update_ratio"})
"""What is measured by layer; of all other quantities no place is a layer."""
ALL, WHOLE, LAYERS = "all", "whole", "layers"
"""Which places a detector can ask for."""


def is_wanted(places: str, signal: Signal) -> bool:
    """Whether a detector that asks for these places wants to see this signal."""
    if places == ALL or signal.quantity not in BY_LAYER:
        return True
    return (places == WHOLE) == of_the_whole(signal.place)
