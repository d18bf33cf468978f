"""Reductions of many tensors to one number each, in few kernels; copies of many tensors in one allocation.

Guarantees: no kernel for each tensor where torch has one for all; many small CPU tensors are batched, bit-identical to
one by one; half precision is summed in single; no device is waited for. Copies are given back when the last is dropped,
half precision becomes single; where they do not fit into the memory budget, turns of pieces hold every value once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api


def on_device(numbers: Sequence[float] | Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a row of these numbers on a device, without waiting for it."""
    if device.type == "cuda":  # a copy from ordinary host memory would wait
        return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


def widest(device: torch.device) -> torch.dtype:
    """Return the type of sums: squares of normal norms overflow float32. Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


MIN_BATCHED_TENSORS = 64  # of fewer it does not pay to batch those of one shape
MAX_BATCHED_VALUES = 2**11  # of a tensor: copying larger ones takes as long as their kernels
BATCH_VALUES = 2**18  # copied side by side at a time: they stay in a core's cache


def crowd_row(
    tensors: list[Tensor], of_rows: Callable[[Tensor], Tensor], of_each: Callable[[list[Tensor]], Tensor]
) -> Tensor:
    """Return a number for each tensor, from matrices of tensors of one shape and from the rest."""
    if len(tensors) < MIN_BATCHED_TENSORS:
        return of_each(tensors)
    shapes: dict[torch.Size, list[int]] = {}
    others: list[int] = []
    for place, tensor in enumerate(tensors):
        alike = 0 < tensor.numel() <= MAX_BATCHED_VALUES and tensor.is_contiguous()
        (shapes.setdefault(tensor.shape, []) if alike else others).append(place)
    order: list[int] = []
    rows: list[Tensor] = []
    for shape, places in shapes.items():
        if len(places) == 1:
            others += places
            continue
        most = BATCH_VALUES // shape.numel()
        for begin in range(0, len(places), most):
            some = places[begin : begin + most]
            order += some
            rows.append(of_rows(torch.stack([tensors[place] for place in some]).view(len(some), -1)))
    if others:
        order += others
        rows.append(of_each([tensors[place] for place in others]))
    row = torch.cat(rows)
    return torch.empty_like(row).index_copy_(0, torch.tensor(order, device=row.device), row)


HALVES = (torch.float16, torch.bfloat16)
CHUNK = 2**11  # values of a large tensor that are summed at once on the CPU
LARGE = 2**14  # minimum number of values of a large tensor
# From tensors of one device and type to a row with a number for each.
Kernel: TypeAlias = Callable[[list[Tensor]], Tensor]


def squares(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of the squares of each; 0 for None, and None if there is no tensor."""
    norms = scalars(tensors, norms_of)
    return None if norms is None else norms.square_()


def norms_of(tensors: list[Tensor]) -> Tensor:
    """Return the L2 norm of each.

    Torch sums on the CPU in single precision, one value after another: of 16 million values that is wrong by 0.1 %,
    and by 1 % where they are alike. Large tensors are therefore summed in chunks.
    """
    wide = torch.float32 if tensors[0].dtype in HALVES else None
    if not tensors[0].is_cpu:
        return torch.stack(torch_api.foreach_norm(tensors, 2.0, wide))
    if len(tensors) < MIN_BATCHED_TENSORS:
        return _norms_on_cpu(tensors, wide)
    return crowd_row(
        tensors,
        lambda matrix: torch.linalg.vector_norm(matrix, 2.0, 1, dtype=wide),
        lambda some: _norms_on_cpu(some, wide),
    )


def nonzeros_of(tensors: list[Tensor]) -> Tensor:
    if not tensors[0].is_cpu:
        return torch.stack(torch_api.foreach_norm(tensors, 0.0, torch.float32 if tensors[0].dtype in HALVES else None))
    # Single precision cannot count beyond some millions, so that no norm can be used.
    return crowd_row(
        tensors,
        lambda matrix: torch.count_nonzero(matrix, 1),
        lambda some: torch.stack([torch.count_nonzero(tensor) for tensor in some]),
    )


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as real numbers in the same memory, two for each; others as they are."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def largest_of(tensors: list[Tensor]) -> Tensor:
    tensors = [as_real(tensor) for tensor in tensors] if tensors[0].is_complex() else tensors
    if not tensors[0].is_cpu:
        return torch.stack(torch_api.foreach_norm(tensors, torch.inf))
    # On the CPU `aminmax` takes a tenth of the time of a norm.
    return crowd_row(
        tensors,
        lambda matrix: _larger(torch.aminmax(matrix, dim=1)),
        lambda some: torch.stack([_larger(torch.aminmax(tensor)) for tensor in some]),
    )


def scalars(tensors: Sequence[Tensor | None], kernel: Kernel) -> Tensor | None:
    """Return the kernel's number for each tensor; 0 for None, and None if there is no tensor."""
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
    """Return all values in a row, in the order of memory, so that a contiguous tensor is not copied."""
    if not tensor.is_contiguous():
        strides = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda at: strides[at], reverse=True))
    return tensor.reshape(-1)


def _norms_on_cpu(tensors: list[Tensor], wide: torch.dtype | None) -> Tensor:
    small = [tensor for tensor in tensors if tensor.numel() < LARGE]
    norms = list(torch_api.foreach_norm(small, 2.0, wide)) if small else []
    if len(small) < len(tensors):
        few = iter(norms)
        norms = [next(few) if tensor.numel() < LARGE else _norm_in_chunks(tensor, wide) for tensor in tensors]
    return torch.stack(norms)


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
    # Usually all are alike, and finding that out must cost little.
    present = [tensor for tensor in tensors if tensor is not None]
    if not present:
        return []
    device, dtype = present[0].device, present[0].dtype
    if len(present) == len(tensors) and all(tensor.dtype is dtype and tensor.device == device for tensor in present):
        return [(range(len(present)), present)]
    buckets: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[Tensor]]] = {}
    for place, tensor in enumerate(tensors):
        if tensor is not None:
            places, bucket = buckets.setdefault((tensor.device, tensor.dtype), ([], []))
            places.append(place)
            bucket.append(tensor)
    return list(buckets.values())


@dataclass(frozen=True, slots=True)
class Piece:
    column: int  # index of the tensor
    begin: int
    end: int  # slice; both are 0 for the whole tensor

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        whole = tensors[self.column]
        return whole[self.begin : self.end] if self.end else whole


def share_out(
    shapes: Sequence[Sequence[int]], item_bytes: Sequence[int], layers: Sequence[object], budget: int
) -> list[list[Piece]] | None:
    """Return the pieces of each turn, or None if a single row of a tensor exceeds the budget."""
    of_layer: dict[object, list[int]] = {}
    for column, layer in enumerate(layers):
        of_layer.setdefault(layer, []).append(column)
    chunks: list[list[Piece]] = [[]]
    left = budget
    for columns in of_layer.values():
        pieces = [Piece(column, 0, 0) for column in columns]
        sizes = [prod(shapes[column]) * item_bytes[column] for column in columns]
        if sum(sizes) > budget:
            cut = [_cut(shapes[column], item_bytes[column], column, budget) for column in columns]
            if None in cut:
                return None
            pieces = [piece for slices in cut if slices is not None for piece in slices]
            sizes = [_size(piece, shapes[piece.column], item_bytes[piece.column]) for piece in pieces]
        elif sum(sizes) > left:
            chunks.append([])
            left = budget
        for piece, size in zip(pieces, sizes, strict=True):
            if size > left:
                chunks.append([])
                left = budget
            chunks[-1].append(piece)
            left -= size
    return chunks


def turns_of_copies(
    tensors: Sequence[Tensor], budget_bytes: int | None, layers: Sequence[object] = (), extra_bytes: int = 0
) -> list[list[Piece]] | None:
    """Return turns for copies of these tensors; without a budget, within `copy_budget` of their device.

    `extra_bytes` is what each value takes beside its copy.
    """
    budget = copy_budget(tensors[0].device) if budget_bytes is None else budget_bytes
    sizes = [bytes_of_copy(tensor) + extra_bytes for tensor in tensors]
    return share_out([tuple(tensor.shape) for tensor in tensors], sizes, layers or range(len(sizes)), budget)


def _cut(shape: Sequence[int], item_bytes: int, column: int, budget: int) -> list[Piece] | None:
    size = prod(shape) * item_bytes
    if size <= budget:
        return [Piece(column, 0, 0)]
    rows = budget // (size // shape[0]) if shape else 0
    if rows == 0:
        return None
    return [Piece(column, begin, min(begin + rows, shape[0])) for begin in range(0, shape[0], rows)]


def _size(piece: Piece, shape: Sequence[int], item_bytes: int) -> int:
    whole = prod(shape) * item_bytes
    return whole // shape[0] * (piece.end - piece.begin) if piece.end else whole


MAX_SHARE_OF_MEMORY = 0.01
MAX_BUDGET_BYTES = 256 * 2**20


def flat_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return copies_and_rows(tensors)[0]


def copies_and_rows(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return a copy of each tensor, and the rows of which these copies are parts."""
    result: list[Tensor] = list(tensors)
    rows = _rows(tensors)
    for places, _, copies in rows:
        for place, copy in zip(places, copies, strict=True):
            result[place] = copy
    return result, [row for _, row, _ in rows]


def flat_rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a copy of all tensors: one row for each device and type."""
    return [row for _, row, _ in _rows(tensors)]


# For each device and type: which tensors, their values in a row, and each in its own shape.
def _rows(tensors: Sequence[Tensor]) -> list[tuple[list[int], Tensor, Sequence[Tensor]]]:
    buckets: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.numel():
            buckets.setdefault((tensor.device, tensor.dtype), []).append(place)
    rows: list[tuple[list[int], Tensor, Sequence[Tensor]]] = []
    with torch.no_grad():
        for (device, dtype), places in buckets.items():
            some = [tensors[place] for place in places]
            size = sum([tensor.numel() for tensor in some])
            row = torch.empty(size, device=device, dtype=torch.promote_types(dtype, torch.float32))
            # One call for all views: made one by one they take longer than the copies.
            copies: Sequence[Tensor] = torch_api.unflatten_dense_tensors(row, some)
            torch_api.foreach_copy_(list(copies), some)
            rows.append((places, row, copies))
    return rows


def bytes_of_copy(tensor: Tensor) -> int:
    return max(tensor.element_size(), 4)


def copy_budget(device: torch.device) -> int:
    """Return the default budget of copies: one hundredth of the device's memory, at most 256 MiB."""
    if device.type == "cuda":
        total = int(torch.cuda.get_device_properties(device).total_memory)
    elif device.type == "mps":
        total = int(torch.mps.recommended_max_memory())
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(int(total * MAX_SHARE_OF_MEMORY), MAX_BUDGET_BYTES)
