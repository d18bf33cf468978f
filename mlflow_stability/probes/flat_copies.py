"""Copies of many tensors in one allocation, and turns in which copies fit into a memory budget.

Guarantees: one allocation and one kernel for each device and type, given back when the last copy is dropped; half
precision becomes single, so that what is computed from the copies is exact. In turns, every value is in exactly one
piece; a layer is in one turn if it fits into one at all; a tensor that does not is cut into slices.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api


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
