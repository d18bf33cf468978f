from __future__ import annotations

import math

import numpy as np
import pytest
from figures.drawings import curve
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.figures.curve import MAX_STRETCHES, CurveSketch, condensed, curve_of, fitted
from mlflow_stability.vocabulary.measured.signal import Series, Signal

VALUES = st.lists(st.floats(width=32), min_size=1, max_size=60)


@given(VALUES, st.integers(1, 50))
def test_no_extreme_and_no_broken_value_is_ever_lost(values: list[float], width: int) -> None:
    found = condensed(curve("loss", values), width)
    finite = [value for value in values if math.isfinite(value)]
    assert found.nonfinite.sum() == len(values) - len(finite)
    assert found.counts.sum() == len(finite)
    if finite:
        assert np.nanmin(found.low) == min(finite)
        assert np.nanmax(found.high) == max(finite)
        assert (found.mean * found.counts)[found.counts > 0].sum() == pytest.approx(math.fsum(finite), rel=1e-6, abs=1)


def test_attempts_are_never_put_together() -> None:
    found = condensed(curve("loss", [1.0, 2.0, 9.0, 8.0], attempts=[0, 0, 1, 1]), 100)
    assert found.attempts.tolist() == [0, 1]
    assert found.high.tolist() == [2.0, 9.0]


def test_thousands_of_attempts_are_still_few_stretches() -> None:
    found = fitted(curve("loss", np.ones(5000), attempts=np.arange(5000)), 1000)
    assert len(found) <= 1001


def test_a_sketch_of_a_million_steps_stays_small_and_keeps_the_spike_of_one() -> None:
    sketch = CurveSketch(Signal("loss"))
    for step in range(1, 200_001):
        sketch.add(step * 5, 1e6 if step == 77_777 else math.nan if step == 123_456 else 2.0, 0)
    found = sketch.curve()
    assert MAX_STRETCHES / 2 <= len(found) <= MAX_STRETCHES
    assert np.nanmax(found.high) == 1e6
    assert found.steps[np.nanargmax(found.high)] <= 77_777 * 5
    assert found.nonfinite.sum() == 1
    assert found.counts.sum() == 199_999


@given(VALUES)
def test_what_is_sketched_is_what_the_whole_series_gives(values: list[float]) -> None:
    sketch = CurveSketch(Signal("loss"))
    for step, value in enumerate(values):
        sketch.add(step, value, 0)
    steps = np.arange(len(values))
    whole = curve_of(Series(Signal("loss"), steps, np.array(values), np.zeros_like(steps), steps * 1.0))
    assert np.array_equal(sketch.curve().mean, whole.mean, equal_nan=True)
    assert np.array_equal(sketch.curve().nonfinite, whole.nonfinite)


def test_a_sketch_that_heard_nothing_is_empty() -> None:
    assert len(CurveSketch(Signal("loss")).curve()) == 0
