from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.vocabulary.run import attempt_order, number_attempts


def attempts(*steps: int) -> list[int]:
    return number_attempts(np.array(steps, np.int64)).tolist()


def test_rising_steps_are_one_attempt() -> None:
    assert attempts(1, 2, 5, 9) == [0, 0, 0, 0]


def test_a_step_that_goes_back_begins_another_attempt() -> None:
    assert attempts(0, 10, 20, 30, 40, 0, 10, 20) == [0] * 5 + [1] * 3


def test_a_resume_that_repeats_steps_is_another_attempt() -> None:
    assert attempts(10, 20, 30, 40, 30, 40, 50) == [0] * 4 + [1] * 3


def test_points_that_overtook_each_other_are_no_restart() -> None:
    steps = np.array([1, 2, 4, 3, 5, 6, 8, 9, 7, 10], np.int64)
    assert number_attempts(steps).tolist() == [0] * 10
    assert steps[attempt_order(steps, number_attempts(steps))].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_a_step_that_is_logged_twice_is_no_restart() -> None:
    assert attempts(1, 1, 2, 2, 2, 3) == [0] * 6


def test_a_last_value_at_step_zero_stands_for_itself() -> None:
    assert attempts(*range(0, 1200, 100), 0) == [0] * 12 + [1]


@pytest.mark.parametrize("runs", [2, 5, 11])
def test_runs_behind_each_other_are_counted(runs: int) -> None:
    steps = np.tile(np.arange(0, 500, 10), runs)
    assert number_attempts(steps).tolist() == np.repeat(np.arange(runs), 50).tolist()


@given(st.lists(st.integers(-5, 60), max_size=60))
def test_every_point_has_an_attempt_and_a_place_and_attempts_never_fall(raw: list[int]) -> None:
    steps = np.array(raw, np.int64)
    result = number_attempts(steps)
    assert (np.diff(result) >= 0).all()
    assert sorted(attempt_order(steps, result).tolist()) == list(range(len(raw)))
