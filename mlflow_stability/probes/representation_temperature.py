"""Finds the temperature at which a module makes its codes.

In: a model and the name of a module in it. Out: the temperature, or None. Promised: the nearest one counts: that of the
module or what is inside of it, then that of what it stands in, up to the model; nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.aside import is_measurable
from mlflow_stability.probes.device_numbers import on_device

PLAIN, LOGARITHM = "temperature", "log_temperature"
"""What a parameter, a buffer or a plain attribute that holds it, or the logarithm of it, is called."""


def temperature_of(chain: Sequence[Module], device: torch.device) -> Tensor | None:
    """A scalar on the device; `chain`: the module, what it stands in, what that stands in, ..."""
    for module in chain:
        for each in Module.modules(module):
            for name in (PLAIN, LOGARITHM):
                value = _scalar(getattr(each, name, None), device)
                if value is not None:
                    return value.exp() if name == LOGARITHM else value
    return None


def _scalar(held: Any, device: torch.device) -> Tensor | None:
    if is_measurable(held) and held.is_floating_point():
        return held.detach().mean(dtype=torch.float32).to(device, non_blocking=True)
    if isinstance(held, (int, float)) and not isinstance(held, bool):
        return on_device([float(held)], device, torch.float32)[0]
    return None
