"""The L2 norm of all gradients: a handful of kernels, whatever the number of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer


class ShardedGradientsError(RuntimeError):
    """Gradients are split over processes, and a part of a norm is not the norm."""


def parameters_of(owner: Optimizer | Module) -> list[Tensor]:
    """The parameters of an optimizer or a module."""
    if isinstance(owner, Module):
        return list(owner.parameters())
    return [parameter for group in owner.param_groups for parameter in group["params"]]


def gradients_of(optimizer: Optimizer) -> list[Tensor]:
    """The gradients that this optimizer is about to use."""
    return [gradient for parameter in parameters_of(optimizer) if (gradient := parameter.grad) is not None]


@torch.no_grad()
def total_norm(gradients: Sequence[Tensor]) -> Tensor | None:
    """The norm over all of them as one scalar on the device; None when there are none.

    Half precision is summed in single: a norm of 70,000 fits no float16, and is no overflow of the training.
    """
    buckets: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            gradient = gradient.coalesce().values() if gradient.is_sparse else gradient.values()
        buckets.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    if not buckets:
        return None
    norms: list[Tensor] = []
    for (_, dtype), bucket in buckets.items():
        if hasattr(bucket[0], "full_tensor"):
            raise ShardedGradientsError("gradients are sharded over processes (DTensor)")
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else None
        norms.extend(torch._foreach_norm(bucket, 2.0, wide))
    return combined(norms)


@torch.no_grad()
def combined(norms: Iterable[Tensor]) -> Tensor:
    """The norm over parts whose norms are given."""
    parts = list(norms)
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if any(part.device != first.device or part.dtype != first.dtype for part in parts):
        wide = torch.promote_types(first.dtype, torch.float32)
        parts = [part.to(first.device, wide, non_blocking=True) for part in parts]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(parts))
    return norm
