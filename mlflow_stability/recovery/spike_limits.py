"""Limits gradients to what is usual for them, as `SPAMAdam` asks for it.

In: gradients, and what is usual. Out: other gradients; those that came in are left alone. Promised: a gradient that is
not above its limit comes back bit-identical, and one without a history of its own is not limited.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlflow_stability.probes import torch_api


def limit_coordinates(gradients: list[Tensor], second: list[Tensor], times: float) -> list[Tensor]:
    """Clip each coordinate g where g² is above `times` its second moment, to the root of that."""
    limits = torch_api.foreach_mul(second, times)
    torch_api.foreach_sqrt_(limits)
    for limit in limits:
        # A coordinate that has had no gradient yet, such as a rare word's, would be held at zero for ever.
        limit.masked_fill_(limit == 0, torch.inf)
    limited = torch_api.foreach_minimum(gradients, limits)
    torch_api.foreach_maximum_(limited, torch_api.foreach_neg(limits))
    return list(limited)


def limit_norms(gradients: list[Tensor], usual: list[Tensor], count: int, times: float, decay: float) -> list[Tensor]:
    """Shorten each gradient whose norm is above `times` its usual one, and take in what was let through.

    `count` is the number of this step, from 1 on: the running mean is divided by the share of it that is filled.
    """
    wide = torch.float32 if gradients[0].dtype in (torch.float16, torch.bfloat16) else None
    norms = torch_api.foreach_norm(gradients, 2.0, wide)
    filled = 1 - decay ** (count - 1)
    limited = []
    for gradient, norm, mean in zip(gradients, norms, usual, strict=True):
        largest = mean * (times / filled) if filled else torch.full_like(norm, torch.inf)
        let_in = torch.minimum(norm, torch.where(largest > 0, largest, torch.inf))
        mean.copy_(torch.where(torch.isfinite(let_in), mean * decay + let_in * (1 - decay), mean))
        factor = torch.where(norm > let_in, let_in / norm, 1.0)
        limited.append(gradient * factor.to(gradient.dtype))
    return limited
