"""What a loss scaler knows, and how it is put back.

In: a scaler. Out: its scale and counter as they lie, on the device perhaps, and its settings. Guarantees: nobody waits
for the device, as the scaler's own ``state_dict`` does; a scale is put back in place, for graphs may know its address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def scaler_state(scaler: Any) -> dict[str, Any]:
    """The state of a loss scaler."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    return {
        "scale": scaler._init_scale if scale is None else scale,
        "growth_tracker": scaler._init_growth_tracker if tracker is None else tracker,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }


def restore_scaler(scaler: Any, saved: Mapping[str, Any], settings: bool) -> None:
    """Put the scale back, and its settings too if asked; else they stay as the script, or we, have them now."""
    tracker: Any = saved["growth_tracker"]
    if settings:
        scaler.set_growth_factor(saved["growth_factor"])
        scaler.set_backoff_factor(saved["backoff_factor"])
        scaler.set_growth_interval(saved["growth_interval"])
    elif scaler.get_growth_interval() != saved["growth_interval"]:
        tracker = 0  # one beyond another interval would never meet it, and the scale never grow again
    for live, initial, value in (
        (scaler._scale, "_init_scale", saved["scale"]),
        (scaler._growth_tracker, "_init_growth_tracker", tracker),
    ):
        if live is None:
            setattr(scaler, initial, value.item() if isinstance(value, Tensor) else value)
        elif isinstance(value, Tensor):
            live.data.copy_(value)
        else:
            live.data.fill_(value)
