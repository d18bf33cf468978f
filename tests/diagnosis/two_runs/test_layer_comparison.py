from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.cards import made
from diagnosis.histories import metric_of, run_of
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.diagnosis.two_runs import (
    LayerCourse,
    StepColumns,
    lacking,
    layer_courses,
    layers_beside,
    step_columns_of,
)
from mlflow_stability.vocabulary.measured.layer_comparison import LayerComparison
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

Layers = Mapping[str, Sequence[float]]


def history_of(layers: Layers, quantity: str = "grad_norm", every: int = 1) -> RunHistory:
    return run_of(
        *(
            metric_of(f"{quantity}@{layer}", values, meaning=Meaning(quantity, layer, is_known=True), steps=at)
            for layer, values in layers.items()
            for at in [np.arange(len(values)) * every]
        )
    )


def beside(
    layers: Layers,
    other: Layers,
    onsets: tuple[int | None, int | None] = (None, None),
    quantity: str = "grad_norm",
    every: int = 1,
    lasts: int | None = None,
) -> LayerComparison:
    last = every * (max(len(layer) for layers in (layers, other) for layer in layers.values()) - 1)
    cards = (made("a", {}, lost=onsets[0], last=last), made("b", {}, lost=onsets[1], last=lasts or last))
    rulers = step_columns_of(*cards)
    assert rulers is not None
    courses = [
        layer_courses(history_of(layers, quantity, every), ruler)
        for layers, ruler in zip((layers, other), rulers, strict=True)
    ]
    (layer,) = layers_beside(*courses, rulers, cards)
    return layer


def test_both_runs_have_the_same_layers_in_the_order_of_the_model() -> None:
    compared = beside({"in": [1.0], "a": [2.0], "out": [3.0]}, {"in": [1.0], "b": [5.0], "out": [4.0]})
    assert compared.layers == ("in", "b", "a", "out")
    assert np.isnan(compared.first[1]).all()
    assert compared.second[1, 0] == 5.0
    assert np.isnan(compared.second[2]).all()
    assert (compared.first[3, 0], compared.second[3, 0]) == (3.0, 4.0)


@pytest.mark.parametrize(("onsets", "places"), [((40, 70), (40, 70)), ((None, 70), (70, 70)), ((40, None), (40, 40))])
def test_columns_are_counted_from_the_onset(onsets: tuple[int | None, int | None], places: tuple[int, int]) -> None:
    first, other = np.ones(100), np.ones(100)
    first[places[0]], other[places[1]] = 50.0, 70.0
    compared = beside({"a": first.tolist()}, {"a": other.tolist()}, onsets)
    zero = -compared.begin // compared.width
    assert (compared.zeros, compared.aligned) == (places, True)
    assert (compared.first[0, zero], compared.second[0, zero]) == (50.0, 70.0)


def test_without_an_onset_columns_are_steps() -> None:
    compared = beside({"a": [1.0, 2.0, 3.0]}, {"a": [4.0, 5.0, 6.0]})
    assert (compared.begin, compared.width, compared.aligned) == (0, 1, False)
    assert compared.first.tolist() == [[1.0, 2.0, 3.0]]


def test_a_column_keeps_the_smallest_entropy_and_the_largest_norm() -> None:
    values = np.full(4_000, 2.0)
    values[1_000], values[2_000] = 0.1, 9.0
    layers = {"attn.head_0": values.tolist()}
    assert np.nanmin(beside(layers, layers, quantity="attention_entropy").first) == np.float32(0.1)
    assert np.nanmax(beside(layers, layers, quantity="attention_entropy").first) == 2.0
    assert np.nanmax(beside(layers, layers).first) == 9.0


@pytest.mark.parametrize("every", [1, 7, 50])
@pytest.mark.parametrize("count", [3, 200, 1_000])
def test_columns_between_two_measurements_are_filled(every: int, count: int) -> None:
    layers = {"a": [1.0] * count, "b": [2.0] * count}
    compared = beside(layers, layers, (every * count // 2, None), every=every)
    assert np.isnan(compared.first).any(axis=0).sum() <= 2  # the columns at either end
    assert compared.columns <= 400


@given(
    st.lists(st.floats(1e-6, 1e6) | st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1, max_size=300),
    st.integers(0, 299),
    st.integers(1, 40),
)
def test_no_extreme_and_nothing_that_was_not_finite_is_lost(values: list[float], zero: int, width: int) -> None:
    ruler = StepColumns(zero, width, -zero // width, (zero + 300) // width + 2)
    course = layer_courses(history_of({"a": values}), ruler).get("grad_norm")
    assert course is not None
    cells = course.cells[0]
    assert np.isinf(cells).any() == (not np.isfinite(values).all())
    at = ruler.places(np.arange(len(values)))
    assert (at >= 0).all()
    for place in np.unique(at):
        here = np.array(values)[at == place]
        assert cells[place] == (np.float32(here.max()) if np.isfinite(here).all() else np.inf)


@pytest.mark.parametrize("onset", [2, 50, 148])
def test_every_step_of_both_runs_is_shown_wherever_the_onset_is(onset: int) -> None:
    values = np.linspace(1.0, 15.0, 150).tolist()
    compared = beside({"a": values}, {"a": values}, (onset, None))
    steps = compared.begin + compared.zeros[0] + np.arange(compared.columns) * compared.width
    assert (steps[0], steps[-1]) == (0, 149)
    assert compared.first[0].tolist() == pytest.approx(values)
    assert not any(where.any() for number in (0, 1) for where in compared.without_colour(number).values())


def test_missing_measurements_are_distinguished_from_layers_and_steps_that_a_run_lacks() -> None:
    cards = made("a", {}, last=119), made("b", {}, last=119)
    rulers = step_columns_of(*cards)
    assert rulers is not None
    gap = np.ones((1, 120), np.float32)
    gap[0, 60:80] = np.nan
    courses = [
        LayerCourse("grad_norm", ("a", "b"), np.ones((2, 120), np.float32)),
        LayerCourse("grad_norm", ("a",), gap),
    ]
    (layer,) = layers_beside(*({"grad_norm": course} for course in courses), rulers, cards)  # type: ignore[misc]
    whole, lacking_one = (layer.without_colour(number) for number in (0, 1))
    assert not any(where.any() for where in whole.values())
    assert lacking_one["absent layer"].any(axis=1).tolist() == [False, True]
    hole = [[0, column] for column in range(60 // layer.width, 80 // layer.width)]
    assert np.argwhere(lacking_one["not measured"]).tolist() == hole
    assert not lacking_one["outside of the run"].any()


def test_steps_behind_the_end_of_the_shorter_run_are_outside_of_it() -> None:
    rulers = step_columns_of(short := made("a", {}, last=59), long := made("b", {}, last=119))
    assert rulers is not None
    courses = [
        layer_courses(history_of({"a": [1.0] * count}), ruler) for count, ruler in zip((60, 120), rulers, strict=True)
    ]
    (layer,) = layers_beside(*courses, rulers, (short, long))
    assert layer.columns_of == ((0, 60), (0, 120))
    assert np.flatnonzero(layer.without_colour(0)["outside of the run"][0]).tolist() == list(range(60, 120))
    assert not layer.without_colour(0)["not measured"].any()


def test_columns_at_the_ends_without_a_due_measurement_are_not_called_missing() -> None:
    values = {"a": [1.0] * 15}  # at steps 0, 10, ..., 140
    compared = beside(values, values, (3, None), every=10, lasts=147)
    assert compared.width == 10
    assert not compared.without_colour(1)["not measured"].any()


def test_the_largest_difference_and_the_first_non_finite_value_are_located() -> None:
    values = {"a": [1.0, 1.0, 1.0, 1.0], "b": [5.0, 5.0, 5.0, 5.0]}
    other = {"a": [1.0, 1.0, 30.0, np.nan], "b": [5.0, 5.0, 6.0, np.inf]}
    compared = beside(values, other, (None, 2))
    assert compared.farthest is not None
    assert (compared.farthest.layer, compared.farthest.offset) == ("a", 0)
    assert (compared.farthest.first, compared.farthest.second) == (1.0, 30.0)
    assert compared.broken[0] is None
    assert compared.broken[1] is not None
    assert (compared.broken[1].layers, compared.broken[1].layer, compared.broken[1].offset) == (2, "a", 1)


def test_notes_name_the_measurements_that_a_run_lacks() -> None:
    course = LayerCourse("grad_norm", ("a",), np.ones((1, 1), np.float32))
    heads = LayerCourse("attention_entropy", ("a.head_0",), np.ones((1, 1), np.float32), left_out=7)
    names = ("calm", "wild")
    assert "neither run" in lacking({}, {}, names)[0]
    assert lacking({"grad_norm": course}, {"grad_norm": course}, names) == [
        "Neither run has attention entropy by head."
    ]
    result = lacking({"grad_norm": course}, {"grad_norm": course, "attention_entropy": heads}, names)
    assert result[0].startswith("calm has no attention entropy by head")
    assert result[1].startswith("7 rows")


def test_names_of_stored_metrics_are_put_into_the_order_in_which_people_count() -> None:
    history = run_of(*history_of({f"layers.{n}": [1.0] for n in (1, 10, 2)}).metrics, complete=False)
    assert layer_courses(history, StepColumns(0, 1, 0, 1))["grad_norm"].layers == ("layers.1", "layers.2", "layers.10")


def test_both_share_one_scale_of_colours() -> None:
    compared = beside({"a": [1.0, 1.0]}, {"a": [1.0, 1000.0]})
    low, high = compared.colour_limits
    assert low < 2.0
    assert high > 500.0


def test_no_columns_are_made_for_runs_without_steps() -> None:
    without = made("b", {}, last=10)
    assert step_columns_of(made("a", {}), replace(without, first_step=None)) is None
