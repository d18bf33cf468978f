"""State of a training outside its tensors: random number generators and the loss scaler.

In: nothing, or what was kept. Out: tensors and numbers that a checkpoint can hold. Guarantees: reading draws nothing
and does not wait for a device, unlike the scaler's own ``state_dict``; generators of devices that were never used are
not woken. A scale is restored in place, for graphs may know its address.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def rng_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's generators, on the CPU and on every device in use."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    if "numpy.random" in sys.modules:
        kind, key, position, has_gauss, cached = np.random.get_state(legacy=True)
        if kind == "MT19937":
            state["numpy"] = {
                "key": torch.from_numpy(np.asarray(key).astype(np.int64)),
                "position": int(position),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            }
    device = _accelerator()
    if device is not None:
        module = torch.get_device_module(device)
        state["devices"] = {
            "type": device.type,
            "states": [module.get_rng_state(*place) for place in _places(device)],
        }
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put the generators back to where they were; those of devices that are not here stay as they are."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"])
    kept = state.get("numpy")
    if kept is not None:
        key = kept["key"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", key, kept["position"], kept["has_gauss"], kept["cached"]))
    devices = state.get("devices")
    if devices is None or not torch.accelerator.is_available():
        return
    here = torch.accelerator.current_accelerator()
    if here is not None and here.type == devices["type"]:
        module = torch.get_device_module(here)
        states: list[Tensor] = devices["states"]
        for each, place in zip(states, _places(here), strict=False):
            module.set_rng_state(each, *place)


def _accelerator() -> torch.device | None:
    """The accelerator that this process uses; None where it uses none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return None
    module = torch.get_device_module(device)
    in_use = getattr(module, "is_initialized", None)
    return device if hasattr(module, "get_rng_state") and (in_use is None or in_use()) else None


def _places(device: torch.device) -> list[tuple[int, ...]]:
    """The devices of this kind, as their module wants them named: of Apple's there is one, without a number."""
    if device.type == "mps":
        return [()]
    return [(number,) for number in range(torch.get_device_module(device).device_count())]


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
