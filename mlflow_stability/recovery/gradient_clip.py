"""Shortens gradients at the gate, in place, without waiting for the device.

In: gradients, their norm as it was measured, and the largest norm they may have. Out: the same direction, no longer
than that. Promised: gradients that are short enough, or not finite, stay bit-identical.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes import torch_api
from mlflow_stability.recovery.gate_check import local_part


def clip_in_place(gradients: Sequence[Tensor], norm: Tensor, largest: Tensor | float) -> Tensor:
    """Shorten gradients to a norm of at most `largest`; gives what they were multiplied by, as it lies on the device.

    `norm` is what the optimizer sees: where gradients still carry a loss scale, the norm without it.
    """
    with torch.no_grad():
        factor = (largest / norm).clamp(max=1.0)
        factor = torch.where(torch.isfinite(norm) & (norm > 0), factor, torch.ones_like(factor))
        buckets: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for each in gradients:
            part = each._values() if each.is_sparse else local_part(each)
            buckets.setdefault((part.device, part.dtype), []).append(part)
        for (device, _), bucket in buckets.items():
            torch_api.foreach_mul_(bucket, factor.to(device, non_blocking=True))
        return factor
