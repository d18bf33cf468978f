"""Puts a few numbers of the host onto a device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(numbers: Sequence[float] | Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """A row of these numbers. A copy from ordinary host memory would wait for the device; from pinned memory not."""
    if device.type == "cuda":
        return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


def widest(device: torch.device) -> torch.dtype:
    """What sums are kept in: the squares of sound norms overflow single precision. Apple's GPUs have no double."""
    return torch.float32 if device.type == "mps" else torch.float64
