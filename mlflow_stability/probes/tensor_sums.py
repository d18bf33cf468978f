"""One number for each of many tensors, in a handful of kernels: their squares summed, and the like.

In: tensors of any devices and types. Out: one row on one device, in their order. Promised: on an accelerator never a
kernel for each tensor where torch has one for all; half precision is summed in single; nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from mlflow_stability.probes.device_numbers import widest

HALVES = (torch.float16, torch.bfloat16)
CHUNK = 2**11
"""How many values of a large tensor are summed in one go on the CPU, ..."""
LARGE = 2**14
"""... and of how many on a tensor is large."""
Kernel: TypeAlias = Callable[[list[Tensor]], Sequence[Tensor]]
"""Takes tensors of one device and type, gives a scalar for each."""


def squares(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the squares of each; 0 for None, and None when there is no tensor at all."""
    norms = scalars(tensors, norms_of)
    return None if norms is None else norms.square_()


def norms_of(tensors: list[Tensor]) -> Sequence[Tensor]:
    """The L2 norm of each.

    Torch sums on the CPU in single precision, one value after another: of 16 million values that is wrong by a
    thousandth, and by a hundredth where they are alike. Large tensors are therefore summed in chunks.
    """
    wide = torch.float32 if tensors[0].dtype in HALVES else None
    if not tensors[0].is_cpu:
        return torch._foreach_norm(tensors, 2.0, wide)
    small = [each for each in tensors if each.numel() < LARGE]
    found = iter(torch._foreach_norm(small, 2.0, wide) if small else ())
    return [next(found) if each.numel() < LARGE else _norm_in_chunks(each, wide) for each in tensors]


def nonzeros_of(tensors: list[Tensor]) -> Sequence[Tensor]:
    """How many values of each are not zero."""
    if tensors[0].is_cpu:  # single precision cannot count beyond some millions, one after another
        return [torch.count_nonzero(each) for each in tensors]
    return torch._foreach_norm(tensors, 0.0, torch.float32 if tensors[0].dtype in HALVES else None)


def largest_of(tensors: list[Tensor]) -> Sequence[Tensor]:
    """The largest absolute value of each."""
    if not tensors[0].is_cpu:
        return torch._foreach_norm(tensors, torch.inf)
    ends = [torch.aminmax(each) for each in tensors]  # a tenth of what the norm takes on the CPU
    return [torch.maximum(low.neg(), high) for low, high in ends]


def scalars(tensors: Sequence[Tensor | None], kernel: Kernel) -> Tensor | None:
    """What the kernel gives for each; 0 for None, and None when there is no tensor at all."""
    buckets = _alike(tensors)
    if not buckets:
        return None
    with torch.no_grad():
        if len(buckets) == 1 and len(buckets[0][0]) == len(tensors):
            row = torch.stack(list(kernel(buckets[0][1])))
            return row.to(widest(row.device))
        device = next((some[0].device for _, some in buckets if not some[0].is_cpu), buckets[0][1][0].device)
        wide = widest(device)
        values: list[Tensor] = [torch.zeros((), dtype=wide, device=device)] * len(tensors)
        for places, some in buckets:
            row = torch.stack(list(kernel(some))).to(device, wide, non_blocking=True)
            for place, value in zip(places, row.unbind(), strict=True):
                values[place] = value
        return torch.stack(values)


def flat_view(tensor: Tensor) -> Tensor:
    """All values in a row: in the order of memory, so that nothing is copied where they lie side by side."""
    if not tensor.is_contiguous():
        strides = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda at: strides[at], reverse=True))
    return tensor.reshape(-1)


def _norm_in_chunks(tensor: Tensor, wide: torch.dtype | None) -> Tensor:
    flat = flat_view(tensor)
    rows = len(flat) // CHUNK
    norms = torch.linalg.vector_norm(flat[: rows * CHUNK].view(rows, CHUNK), 2.0, 1, dtype=wide)
    if rows * CHUNK < len(flat):
        norms = torch.cat((norms, torch.linalg.vector_norm(flat[rows * CHUNK :], dtype=wide).view(1)))
    whole: Tensor = torch.linalg.vector_norm(norms.double()).to(norms.dtype)
    return whole


def _alike(tensors: Sequence[Tensor | None]) -> list[tuple[Sequence[int], list[Tensor]]]:
    """Which of them are of one device and type; as a rule all, and finding that out must cost little."""
    present = [each for each in tensors if each is not None]
    if not present:
        return []
    device, dtype = present[0].device, present[0].dtype
    if len(present) == len(tensors) and all(each.dtype is dtype and each.device == device for each in present):
        return [(range(len(present)), present)]
    buckets: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[Tensor]]] = {}
    for place, each in enumerate(tensors):
        if each is not None:
            places, some = buckets.setdefault((each.device, each.dtype), ([], []))
            places.append(place)
            some.append(each)
    return list(buckets.values())
