"""Asks whether a capture is broken: one flag on the device, above zero where a loss or a gradient is not finite.

In: scalar losses, a norm that was taken already, gradients of which none was. Out: the flag, without waiting for it.
Guarantees: nothing is changed. A finite gradient whose norm is too large for its type counts as broken: the second
moments of an optimizer would not survive its square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.tensors import gradients_of, total_norm


def broken_flag(
    losses: Sequence[Tensor | float],
    norm: Tensor | None,
    optimizers: Sequence[Optimizer],
    largest: float | Tensor | None = None,
) -> Tensor | None:
    """1.0 on the device where anything is not finite, else 0.0; None where there is nothing to ask.

    `norm` is one that was taken already, and is not to be above `largest`; of `optimizers` it is taken here.
    """
    with torch.no_grad():
        scalars = (*losses, *([] if norm is None else [norm]))
        # Of a number only matters whether it is finite, which no type of a device may change.
        asked = [each.detach().reshape(()) if isinstance(each, Tensor) else torch.tensor(0 * each) for each in scalars]
        for optimizer in optimizers:
            theirs = total_norm([local_part(each) for each in gradients_of(optimizer)])
            if theirs is not None:
                asked.append(theirs)
        if not asked:
            return None
        if all(each.is_cpu for each in asked):  # nobody waits for a value that is here
            values = [each.item() for each in asked]
            absurd = norm is not None and largest is not None and values[len(losses)] > float(largest)
            return torch.tensor(float(absurd or not all(map(math.isfinite, values))), dtype=torch.float32)
        # Gradients say on which device it is wanted; a loss may have been moved to the host.
        device = asked[-1].device
        wide = torch.float32
        for each in asked:
            wide = torch.promote_types(wide, each.dtype)
        row = torch.stack([each.to(device, wide, non_blocking=True) for each in asked])
        sound = torch.isfinite(row).all()
        if norm is not None and largest is not None:
            sound = sound & (row[len(losses)] <= _beside(largest, row))
        return 1.0 - sound.to(torch.float32)


def _beside(largest: float | Tensor, row: Tensor) -> float | Tensor:
    return largest.to(row.device, row.dtype, non_blocking=True) if isinstance(largest, Tensor) else largest


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor that is split over processes; whether it is finite is asked of each part."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def takes_found_inf(optimizer: Optimizer) -> bool:
    """Whether this optimizer asks a flag on the device whether to do anything, so that nobody has to wait for it.

    Fused optimizers do. Not in their first step: fused SGD then makes buffers that it fills only if it does something.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    for group in optimizer.param_groups:
        if not group.get("fused") or not type(optimizer).__module__.startswith("torch.optim"):
            return False
        if any(each.grad is not None and not _has_state(optimizer, group, each) for each in group["params"]):
            return False
    return True


def _has_state(optimizer: Optimizer, group: dict[str, object], parameter: Tensor) -> bool:
    state = optimizer.state.get(parameter) or {}
    if isinstance(optimizer, torch.optim.SGD):
        return not group.get("momentum") or state.get("momentum_buffer") is not None
    return bool(state)
