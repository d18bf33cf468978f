"""Shares out many tensors over several turns, so that copies of those of one turn fit into a number of bytes.

In: the shapes of the tensors, what a copy takes, the layer of each. Out: turns of pieces. Guarantees: every value is in
exactly one piece; a layer is in one turn if it fits into one at all; a tensor that does not is cut into slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, or a slice of its first dimension."""

    column: int
    """Which tensor."""
    begin: int
    end: int
    """The slice; both are 0 for the tensor as it is."""

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """This piece of what the tensors are now."""
        whole = tensors[self.column]
        return whole[self.begin : self.end] if self.end else whole


def share_out(
    shapes: Sequence[Sequence[int]], item_bytes: Sequence[int], layers: Sequence[object], budget: int
) -> list[list[Piece]] | None:
    """The turns; None where not even one slice of some tensor fits."""
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
            if any(each is None for each in cut):
                return None
            pieces = [piece for each in cut if each is not None for piece in each]
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
