"""Copies many tensors into one allocation, at least in single precision.

In: tensors. Out: copies of the same shapes. Guarantees: one allocation and one kernel for each device and type, given
back when the last copy is dropped; half precision becomes single, so that what is computed from the copies is exact.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api

SHARE_OF_MEMORY = 0.01
MOST_BYTES = 256 * 2**20


def flat_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each."""
    return copies_and_rows(tensors)[0]


def copies_and_rows(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """A copy of each, and the rows that these copies are parts of."""
    found: list[Tensor] = list(tensors)
    rows = _rows(tensors)
    for places, _, copies in rows:
        for place, copy in zip(places, copies, strict=True):
            found[place] = copy
    return found, [row for _, row, _ in rows]


def flat_rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of all: one row for each device and type."""
    return [row for _, row, _ in _rows(tensors)]


def _rows(tensors: Sequence[Tensor]) -> list[tuple[list[int], Tensor, Sequence[Tensor]]]:
    """For each device and type: which tensors, their values in a row, and each in its own shape."""
    buckets: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, each in enumerate(tensors):
        if each.numel():  # a copy of nothing is nothing
            buckets.setdefault((each.device, each.dtype), []).append(place)
    found: list[tuple[list[int], Tensor, Sequence[Tensor]]] = []
    with torch.no_grad():
        for (device, dtype), places in buckets.items():
            some = [tensors[place] for place in places]
            size = sum([each.numel() for each in some])
            row = torch.empty(size, device=device, dtype=torch.promote_types(dtype, torch.float32))
            # One call for all views: made one by one they take longer than the copies.
            copies: Sequence[Tensor] = torch_api.unflatten_dense_tensors(row, some)
            torch_api.foreach_copy_(list(copies), some)
            found.append((places, row, copies))
    return found


def bytes_of_copy(tensor: Tensor) -> int:
    """How many bytes the copy of one value takes."""
    return max(tensor.element_size(), 4)


def copy_budget(device: torch.device) -> int:
    """How many bytes copies may take unless it is said: one hundredth of the device's memory, at most 256 MiB."""
    if device.type == "cuda":
        total = int(torch.cuda.get_device_properties(device).total_memory)
    elif device.type == "mps":
        total = int(torch.mps.recommended_max_memory())
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(int(total * SHARE_OF_MEMORY), MOST_BYTES)
