from __future__ import annotations

import math

import numpy as np
import pytest

from mlflow_stability.reports.terminal_kit import draw
from mlflow_stability.vocabulary.text.phrases import number_text

STEPS = np.arange(1, 1001)


def test_a_curve_falls_from_the_upper_left_to_the_lower_right() -> None:
    lines = draw(STEPS, np.linspace(10, 0, 1000), 40, 4, dots=False)
    assert lines == [
        "      10 |********",
        "         |       ********",
        "         |              ********",
        "       0 |                     *********",
        "          1                        1,000",
    ]


def test_a_spike_of_one_step_in_a_thousand_is_seen() -> None:
    values = np.ones(1000)
    values[500] = 100.0
    top, *_, bottom, _ = draw(STEPS, values, 60, 5)
    assert top.strip().startswith("100 ┤")
    assert set(top.partition("┤")[2].strip()) - {" "}
    assert bottom.strip().startswith("1 ┤")


def test_a_constant_is_a_straight_line() -> None:
    lines = draw(STEPS, np.full(1000, 3.0), 40, 3, dots=False)
    assert [line.count("*") for line in lines] == [0, 0, 30, 0]


def test_values_that_are_not_finite_are_left_out() -> None:
    values = np.array([1.0, math.nan, math.inf, 2.0])
    assert draw(np.arange(1, 5), values, 40, 3) != []
    assert draw(np.arange(1, 3), np.array([math.nan, math.inf]), 40, 3) == ["no finite value"]


def test_points_that_are_far_apart_are_joined() -> None:
    lines = draw(np.array([0, 100]), np.array([0.0, 1.0]), 40, 3, dots=False)
    columns = {column for line in lines[:-1] for column, mark in enumerate(line) if mark == "*"}
    assert columns == set(range(10, 40))


def test_no_line_is_drawn_over_values_that_are_not_finite() -> None:
    lines = draw(np.array([0, 10, 50, 90, 100]), np.array([1.0, 1.0, math.nan, 1.0, 1.0]), 111, 1, dots=False)
    assert lines[0].partition("|")[2] == "*" * 11 + " " * 79 + "*" * 11


def test_a_curve_that_ends_in_nan_does_not_reach_the_right_edge() -> None:
    values = np.where(STEPS <= 500, 1.0, math.nan)
    assert draw(STEPS, values, 110, 1, dots=False)[0].count("*") == 50


def test_a_logarithmic_curve_shows_what_lies_far_below_its_peak() -> None:
    values = np.ones(1000)
    values[300:600], values[600] = 2.0, 1e6
    assert draw(STEPS, values, 60, 20, dots=False, logarithmic=True)[-3].count("*") > 10
    assert draw(STEPS, values, 60, 20, dots=False)[-3].count("*") == 1


def test_one_value_is_a_curve_too() -> None:
    assert "*" in "".join(draw(np.array([7]), np.array([0.5]), 40, 3, dots=False))


@pytest.mark.parametrize("dots", [True, False])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e30])
def test_no_line_is_wider_than_asked(dots: bool, scale: float) -> None:
    values = np.random.default_rng(0).normal(size=1000) * scale
    assert max(map(len, draw(STEPS, values, 78, 6, dots=dots))) <= 78


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.2511, "0.251"), (3e-4, "3.0e-04"), (12345.6, "12346"), (1e9, "1.0e+09"), (math.nan, "NaN")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(("value", "expected"), [(999.4, "999"), (999.7, "1000"), (-999.7, "-1000"), (1000.4, "1000")])
def test_a_number_just_below_a_thousand_is_written_as_its_neighbours_are(value: float, expected: str) -> None:
    assert number_text(value) == expected
