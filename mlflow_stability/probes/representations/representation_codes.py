"""Recognition of sparse binary codes among module outputs, and the temperature that makes them.

In: what a module returned and received; a model and a module name. Out: yes or no as a scalar on the device; rows of
bits; the share of inputs that differ; the temperature, or None. Guarantees: nothing is waited for; masks are not
codes: dropout masks are not all zeros and ones, one-hot choices have one bit, numbers without gradient are not
learnt, boolean rows must have equally many bits.

The nearest temperature counts: of the module or inside it, then of the modules around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.hooks.untracked_ops import is_measurable
from mlflow_stability.probes.representations.sparse_codes import different_rows
from mlflow_stability.probes.tensors.tensor_sums import HALVES, on_device

NARROWEST = 64
MOST_ACTIVE = 0.25
FEWEST_ACTIVE = 2
"""Bits of a code."""
LOOKED_AT = 2**16
"""So many values are looked at."""
MOST_VALUES = 2**24
"""Of more only evenly spread rows are taken."""


def may_be_codes(output: Tensor, learning: bool) -> bool:
    """Whether the shape and type are those of codes. `learning`: whether gradients are recorded at all."""
    wide = output.dim() >= 2 and output.size(-1) >= NARROWEST and output.numel() >= 2 * output.size(-1)
    learnt = output.is_floating_point() and (output.requires_grad or not learning)
    return wide and (learnt or output.dtype is torch.bool)


def are_codes(output: Tensor) -> Tensor:
    """Whether the values are: near zero or one, few ones, but several in a row."""
    rows = output.reshape(-1, output.size(-1))
    rows = rows[:: -(-rows.numel() // LOOKED_AT)]
    on = bits_of(rows)
    active = on.sum(1)
    share = active.sum().to(torch.float32) / on.numel()  # of whole numbers it would be of the script's default type
    fit = (share < MOST_ACTIVE) & (share * on.size(1) >= FEWEST_ACTIVE)
    if output.dtype is torch.bool:
        return fit & (active == active[0]).all()
    # A gradient that is passed straight through adds and takes away a number: what is left is not exactly zero or one.
    near = 0.01 if output.dtype in HALVES else 1e-3
    return fit & ((rows - on.to(rows.dtype)).abs() <= near).all()


def bits_of(rows: Tensor) -> Tensor:
    """Which values are on."""
    return rows if rows.dtype is torch.bool else rows > 0.5


def spread_rows(output: Tensor, axis: int = -1) -> Tensor:
    """The output as a matrix, a row for each example or place; of large ones evenly spread rows."""
    matrix = output.movedim(axis, -1).reshape(-1, output.size(axis))
    return matrix[:: -(-matrix.numel() // MOST_VALUES)]


def share_that_differs(given: Tensor, count: int) -> Tensor | None:
    """The share of different ones among `count` inputs; None: what was given does not come in so many rows."""
    if given.numel() == count:
        rows = given.reshape(count, 1)
    elif given.dim() and given.numel() == count * given.size(-1):
        rows = given.reshape(count, -1)
    elif given.dim() and given.size(0) == count:
        rows = given.flatten(1)
    else:
        return None
    return different_rows(rows).to(torch.float32) / count if given.numel() <= MOST_VALUES else None


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
