"""What the sum of the rows of all processes says."""

from __future__ import annotations

import math

import pytest

from mlflow_stability.probes.ranks.sum_over_ranks import Agreed, Layout, Measured, RankTable, Shape, pack, unpack

LAYOUT = Layout(layers=2, partial=3, names=77)


def summed(*measured: Measured, shape: Shape | None = None, names: tuple[int, ...] = ()) -> tuple[RankTable, Agreed]:
    size = len(measured)
    shape = Shape(size, LAYOUT, with_layers=True, with_partial=True) if shape is None else shape
    said = names or (LAYOUT.names,) * size
    rows = [pack(each, rank, shape, name) for rank, (each, name) in enumerate(zip(measured, said, strict=True))]
    assert len({len(row) for row in rows}) == 1
    return unpack([sum(column) for column in zip(*rows, strict=True)], shape, said[0])


def test_squares_add_up_and_values_that_are_not_whole_are_summed_before_they_are_squared() -> None:
    table, agreed = summed(
        Measured(1, 5, 1.0, squares=9.0, partial=(1.0, 2.0, 0.0)),
        Measured(1, 5, 3.0, squares=7.0, partial=(1.0, -2.0, 0.0)),
    )
    assert table.norm == math.sqrt(9 + 7 + 4)
    assert table.losses == (1.0, 3.0)
    assert agreed.layout_is_shared


def test_what_one_process_has_not_measured_is_known_of_none() -> None:
    table, _ = summed(
        Measured(1, 10, squares=1.0, partial=(0.0,) * 3, whole={"norms": (1.0, 2.0, 3.0), "momentum": (4.0,)}),
        Measured(1, 10, squares=None, whole={"norms": (1.0, 2.0, 3.0)}),
    )
    assert table.norm is None
    assert table.whole == {"norms": [2.0, 4.0, 6.0]}
    assert table.losses == (None, None)


def test_what_was_measured_at_different_steps_is_not_summed() -> None:
    one, other = (Measured(1, step, whole={"momentum": (1.0,)}) for step in (10, 11))
    assert summed(one, other)[0].whole == {}


def test_other_layers_on_one_process_are_noticed_by_all() -> None:
    _, agreed = summed(Measured(1), Measured(1), names=(77, 78))
    assert not agreed.layout_is_shared


def test_a_loss_that_is_not_finite_is_told_with_its_rank() -> None:
    table, _ = summed(Measured(1, loss=1.0), Measured(1, loss=math.nan), Measured(1, loss=math.inf))
    assert table.losses == pytest.approx((1.0, math.nan, math.inf), nan_ok=True)


def test_gradients_that_are_not_finite_have_a_norm_that_is_not() -> None:
    table, _ = summed(Measured(1, squares=math.inf, partial=(0.0,) * 3), Measured(1, squares=1.0, partial=(0.0,) * 3))
    assert table.norm == math.inf
