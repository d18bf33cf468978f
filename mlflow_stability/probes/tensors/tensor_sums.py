"""Reductions of many tensors to one number each, in few kernels.

In: tensors of any devices and types. Out: one row on one device, in their order. Guarantees: no kernel for each
tensor where torch has one for all; many small CPU tensors are batched, bit-identical to one by one, with copies of at
most a few megabytes; half precision is summed in single; nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.tensors.device_numbers import on_device, widest

CROWD = 64
"""From how many tensors on it pays to look for those of one shape, ..."""
SMALL = 2**11
"""... of up to how many values each: copying larger ones takes as long as their kernels."""
TOGETHER = 2**18
"""How many values are copied side by side at a time: they stay in a core's cache."""


def crowd_row(
    tensors: list[Tensor], of_rows: Callable[[Tensor], Tensor], of_each: Callable[[list[Tensor]], Tensor]
) -> Tensor:
    """A number for each tensor."""
    if len(tensors) < CROWD:
        return of_each(tensors)
    shapes: dict[torch.Size, list[int]] = {}
    others: list[int] = []
    for place, each in enumerate(tensors):
        alike = 0 < each.numel() <= SMALL and each.is_contiguous()  # else they would be summed in another order
        (shapes.setdefault(each.shape, []) if alike else others).append(place)
    order: list[int] = []
    found: list[Tensor] = []
    for shape, places in shapes.items():
        if len(places) == 1:
            others += places
            continue
        most = TOGETHER // shape.numel()
        for begin in range(0, len(places), most):
            some = places[begin : begin + most]
            order += some
            found.append(of_rows(torch.stack([tensors[place] for place in some]).view(len(some), -1)))
    if others:
        order += others
        found.append(of_each([tensors[place] for place in others]))
    row = torch.cat(found)
    return torch.empty_like(row).index_copy_(0, torch.tensor(order, device=row.device), row)


HALVES = (torch.float16, torch.bfloat16)
CHUNK = 2**11
"""How many values of a large tensor are summed in one go on the CPU, ..."""
LARGE = 2**14
"""... and of how many on a tensor is large."""
Kernel: TypeAlias = Callable[[list[Tensor]], Tensor]
"""Takes tensors of one device and type, gives a row with a number for each."""


def squares(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the squares of each; 0 for None, and None when there is no tensor at all."""
    norms = scalars(tensors, norms_of)
    return None if norms is None else norms.square_()


def norms_of(tensors: list[Tensor]) -> Tensor:
    """The L2 norm of each.

    Torch sums on the CPU in single precision, one value after another: of 16 million values that is wrong by a
    thousandth, and by a hundredth where they are alike. Large tensors are therefore summed in chunks.
    """
    wide = torch.float32 if tensors[0].dtype in HALVES else None
    if not tensors[0].is_cpu:
        return torch.stack(torch_api.foreach_norm(tensors, 2.0, wide))
    if len(tensors) < CROWD:
        return _norms_on_cpu(tensors, wide)
    return crowd_row(
        tensors,
        lambda matrix: torch.linalg.vector_norm(matrix, 2.0, 1, dtype=wide),
        lambda some: _norms_on_cpu(some, wide),
    )


def nonzeros_of(tensors: list[Tensor]) -> Tensor:
    """How many values of each are not zero."""
    if not tensors[0].is_cpu:
        return torch.stack(torch_api.foreach_norm(tensors, 0.0, torch.float32 if tensors[0].dtype in HALVES else None))
    # Single precision cannot count beyond some millions, one after another: no norm does for this.
    return crowd_row(
        tensors,
        lambda matrix: torch.count_nonzero(matrix, 1),
        lambda some: torch.stack([torch.count_nonzero(each) for each in some]),
    )


def largest_of(tensors: list[Tensor]) -> Tensor:
    """The largest absolute value of each."""
    if not tensors[0].is_cpu:
        return torch.stack(torch_api.foreach_norm(tensors, torch.inf))
    # The ends take a tenth of what the norm takes on the CPU.
    return crowd_row(
        tensors,
        lambda matrix: _larger(torch.aminmax(matrix, dim=1)),
        lambda some: torch.stack([_larger(torch.aminmax(each)) for each in some]),
    )


def scalars(tensors: Sequence[Tensor | None], kernel: Kernel) -> Tensor | None:
    """What the kernel gives for each; 0 for None, and None when there is no tensor at all."""
    buckets = _alike(tensors)
    if not buckets:
        return None
    with torch.no_grad():
        if len(buckets) == 1 and len(buckets[0][0]) == len(tensors):
            row = kernel(buckets[0][1])
            return row.to(widest(row.device))
        device = next((some[0].device for _, some in buckets if not some[0].is_cpu), buckets[0][1][0].device)
        wide = widest(device)
        values = torch.zeros(len(tensors), dtype=wide, device=device)
        for places, some in buckets:
            row = kernel(some).to(device, wide, non_blocking=True)
            values.index_copy_(0, on_device(places, device, torch.long), row)
        return values


def flat_view(tensor: Tensor) -> Tensor:
    """All values in a row: in the order of memory, so that nothing is copied where they lie side by side."""
    if not tensor.is_contiguous():
        strides = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda at: strides[at], reverse=True))
    return tensor.reshape(-1)


def _norms_on_cpu(tensors: list[Tensor], wide: torch.dtype | None) -> Tensor:
    small = [each for each in tensors if each.numel() < LARGE]
    found = list(torch_api.foreach_norm(small, 2.0, wide)) if small else []
    if len(small) < len(tensors):
        few = iter(found)
        found = [next(few) if each.numel() < LARGE else _norm_in_chunks(each, wide) for each in tensors]
    return torch.stack(found)


def _larger(ends: tuple[Tensor, Tensor]) -> Tensor:
    return torch.maximum(ends[0].neg(), ends[1])


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
