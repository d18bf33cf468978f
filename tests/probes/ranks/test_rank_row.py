"""What the sum of the rows of all processes says."""

from __future__ import annotations

import math

import pytest

from mlflow_stability.probes.ranks.rank_row import (
    Agreed,
    Layout,
    Measured,
    Orders,
    RankPeaks,
    RankRow,
    RankTable,
    Shape,
    Slot,
    Squares,
    Sums,
    Votes,
    table_of,
)

LAYOUT = Layout(layers=2, partial=3, names=77)


def summed(*measured: Measured, names: tuple[int, ...] = ()) -> tuple[RankTable, Agreed]:
    size = len(measured)
    shape = Shape(size, LAYOUT.layers, LAYOUT.partial)
    result = names or (LAYOUT.names,) * size
    rows = [item.row(rank, shape, name) for rank, (item, name) in enumerate(zip(measured, result, strict=True))]
    return table_of(sum_of(rows, shape), size, result[0])


def sum_of(rows: list[RankRow], shape: Shape) -> RankRow:
    """As it arrives in every process."""
    sent = [item.numbers(shape) for item in rows]
    assert {len(row) for row in sent} == {shape.numbers}
    return RankRow.of([sum(column) for column in zip(*sent, strict=True)], shape)


@pytest.mark.parametrize("shape", [Shape(2), Shape(2, partial=3), Shape(2, 2, 3)])
@pytest.mark.parametrize("measures", [0.0, 2.0])
def test_every_field_arrives_under_its_own_name(shape: Shape, measures: float) -> None:
    sent = RankRow(
        Votes(*range(1, len(Votes._fields) + 1))._replace(measures=measures),
        Orders(*range(101, 101 + len(Orders._fields))),
        Sums(*range(201, 201 + len(Sums._fields))),
        conditions={1: 3},
    )
    if measures:
        peaks = RankPeaks(broken=3, spike=5, spike_loss=2.5, spike_level=0.5, spike_z=9.0, slow=4, slow_seconds=2.0)
        sent.slots = {0: Slot(), 1: Slot(1.0, 7.5, 0.25, peaks)}
        sent.whole = {
            "norms": Squares(2.0, 20.0, [1.0, 2.0, 3.0]),
            "updates": Squares(2.0, 20.0, [4.0, 5.0]),
            "momentum": Squares(1.0, 10.0, [6.0]),
        }
        sent.partial = [1.0, -2.0, 0.5] if shape.partial else []
    if measures and shape.layers:
        sent.by_layer = {
            "norms": Squares(2.0, 20.0, [float(at) for at in range(6)]),
            "updates": Squares(2.0, 20.0, [float(at) for at in range(4)]),
            "momentum": Squares(2.0, 20.0, [0.5, 0.25]),
        }
    assert RankRow.of(sent.numbers(shape), shape) == sent


def test_rows_that_say_different_things_have_the_same_length() -> None:
    shape = Shape(2, LAYOUT.layers, LAYOUT.partial)
    measured = Measured(1, 5, 1.0, squares=9.0, partial=(1.0, 2.0, 0.0), whole={"norms": (1.0, 2.0, 3.0)})
    row = sum_of([RankRow(Votes(leaving=1.0)), measured.row(1, shape, LAYOUT.names)], shape)
    assert (row.votes.leaving, row.votes.measures) == (1.0, 1.0)
    assert table_of(row, 2, LAYOUT.names)[0].norm is None


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
    first, other = (Measured(1, step, whole={"momentum": (1.0,)}) for step in (10, 11))
    assert summed(first, other)[0].whole == {}


def test_other_layers_on_one_process_are_noticed_by_all() -> None:
    _, agreed = summed(Measured(1), Measured(1), names=(77, 78))
    assert not agreed.layout_is_shared


def test_a_non_finite_loss_is_reported_with_its_rank() -> None:
    table, _ = summed(Measured(1, loss=1.0), Measured(1, loss=math.nan), Measured(1, loss=math.inf))
    assert table.losses == pytest.approx((1.0, math.nan, math.inf), nan_ok=True)


def test_gradients_that_are_not_finite_have_a_norm_that_is_not() -> None:
    table, _ = summed(Measured(1, squares=math.inf, partial=(0.0,) * 3), Measured(1, squares=1.0, partial=(0.0,) * 3))
    assert table.norm == math.inf
