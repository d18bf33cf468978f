from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from findings import changed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reports.samples import broken, healthy, nan, spike

from mlflow_stability.reports.html_kit.axis import HEIGHT, WIDTH
from mlflow_stability.reports.html_kit.pages import MAX_NUMBER_ROWS, Chart, chart_of
from mlflow_stability.reports.run_sections import drawn_curves
from mlflow_stability.vocabulary.result import Sketch

NUMBERS = re.compile(r"-?\d+\.\d")


def chart(sketch: Sketch, *episodes: tuple[int, int]) -> Chart:
    (curve,) = drawn_curves(replace(healthy(), curves=(), sketches=(sketch,)))
    numbered = [(number, changed(spike(), start=a, end=b)) for number, (a, b) in enumerate(episodes, start=1)]
    return chart_of(curve, numbered)


def sketch(*values: float) -> Sketch:
    return Sketch("loss", tuple(range(len(values))), values, values)


def test_a_falling_loss_runs_from_the_upper_left_to_the_lower_right() -> None:
    points = [float(match) for match in NUMBERS.findall(chart(sketch(3.0, 2.0, 1.0)).line)]
    assert points[0::2] == [0.0, WIDTH / 2, WIDTH]
    assert points[1] < points[3] < points[5]


def test_a_curve_is_broken_where_it_is_not_finite_and_where_steps_go_back() -> None:
    assert chart(sketch(3.0, 2.0, math.nan, 2.0, 1.0)).line.count("M") == 2
    assert chart(Sketch("loss", (0, 5, 3, 8), (1.0,) * 4, (2.0,) * 4)).line.count("M") == 2


def test_a_wide_range_has_a_logarithmic_scale_with_round_labels() -> None:
    wide = chart(sketch(100.0, 1.0, 0.01))
    assert wide.curve.logarithmic
    assert [tick.label for tick in wide.values] == ["0.01", "0.1", "1", "10", "100"]
    narrow = chart(sketch(4.0, 1.0))
    assert not narrow.curve.logarithmic
    assert [tick.label for tick in narrow.values] == ["1", "2", "3", "4"]


def test_a_curve_without_a_finite_value_has_no_line() -> None:
    empty = chart(sketch(math.nan, math.nan), (0, 1))
    assert (empty.line, empty.envelope, empty.values) == ("", "", ())
    assert len(empty.bands) == 1


def test_an_episode_of_one_step_is_wide_enough_to_be_seen_and_stays_inside() -> None:
    first, last = chart(sketch(*[1.0] * 1000), (0, 0), (999, 999)).bands
    assert first.width > 0
    assert last.left + last.width <= 100


def test_numbers_of_neighbours_are_in_different_rows_up_to_a_maximum() -> None:
    bands = chart(sketch(*[1.0] * 1000), *[(step, step) for step in range(500, 520)]).bands
    rows = [band.row for band in bands]
    assert rows[:5] == [0, 1, 2, 3, None]
    assert chart(sketch(1.0, 2.0), (0, 0), (0, 0)).rows == 2
    assert MAX_NUMBER_ROWS == 4


def test_the_last_step_is_that_of_the_curve_not_of_its_last_stretch() -> None:
    (curve,) = drawn_curves(broken())
    assert curve.last == 999
    assert math.isnan(curve.final)
    assert chart_of(curve, [(1, nan())]).bands[0].left == pytest.approx(96.1, abs=0.1)


FINITE = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=80)
@example([(0, math.inf, -math.inf)])
@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), FINITE, FINITE), min_size=1, max_size=30))
def test_whatever_the_values_are_the_drawing_stays_inside_its_frame(rows: list[tuple[int, float, float]]) -> None:
    steps, low, high = zip(*[(step, min(a, b), max(a, b)) for step, a, b in rows], strict=True)
    drawn = chart(Sketch("loss", steps, low, high), (steps[0], steps[-1]))
    for path in (drawn.line, drawn.envelope):
        assert "nan" not in path
        assert "inf" not in path
        points = np.array([float(match) for match in NUMBERS.findall(path)]).reshape(-1, 2)
        assert ((points >= -0.1) & (points <= [WIDTH + 0.1, HEIGHT + 0.1])).all()
    for tick in (*drawn.values, *drawn.steps):
        assert -0.1 <= tick.at <= 100.1
    assert len(drawn.values) <= 25
    assert len(drawn.steps) <= 10
