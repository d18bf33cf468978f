from __future__ import annotations

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.probes.tensor_sums import Piece, share_out

SHAPES = st.lists(st.lists(st.integers(1, 6), min_size=0, max_size=3).map(tuple), min_size=1, max_size=12)


def bytes_of(chunk: list[Piece], tensors: list[torch.Tensor], item_bytes: int) -> int:
    return sum(piece.of(tensors).numel() for piece in chunk) * item_bytes


@given(SHAPES, st.integers(1, 8), st.integers(1, 4), st.integers(0, 2000))
def test_every_value_has_one_turn_and_no_turn_is_more_than_the_budget(
    shapes: list[tuple[int, ...]], item_bytes: int, in_a_layer: int, budget: int
) -> None:
    tensors = [torch.zeros(shape) for shape in shapes]
    layers = [number // in_a_layer for number in range(len(shapes))]
    chunks = share_out(shapes, [item_bytes] * len(shapes), layers, budget)
    if chunks is None:
        assert any(prod(shape[1:]) * item_bytes > budget for shape in shapes)
        return
    for chunk in chunks:
        assert bytes_of(chunk, tensors, item_bytes) <= budget
        for piece in chunk:
            piece.of(tensors).add_(1)
    assert all(bool((tensor == 1).all()) for tensor in tensors)
    for layer in set(layers):
        members = {column for column, value in enumerate(layers) if value == layer}
        if sum(tensors[column].numel() for column in members) * item_bytes <= budget:
            assert sum(any(piece.column in members for piece in chunk) for chunk in chunks) == 1


def test_what_fits_in_is_one_turn() -> None:
    assert share_out([(4, 4), (4,)], [4, 4], ["a", "a"], 80) == [[Piece(0, 0, 0), Piece(1, 0, 0)]]


def test_a_tensor_that_does_not_fit_is_cut_by_its_first_dimension() -> None:
    chunks = share_out([(5, 4)], [4], ["a"], 32)
    assert chunks == [[Piece(0, 0, 2)], [Piece(0, 2, 4)], [Piece(0, 4, 5)]]
