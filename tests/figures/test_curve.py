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
    condensed_curve = condensed(curve("loss", values), width)
    finite = [value for value in values if math.isfinite(value)]
    assert condensed_curve.nonfinite.sum() == len(values) - len(finite)
    assert condensed_curve.counts.sum() == len(finite)
    if finite:
        assert np.nanmin(condensed_curve.low) == min(finite)
        assert np.nanmax(condensed_curve.high) == max(finite)
        assert (condensed_curve.mean * condensed_curve.counts)[condensed_curve.counts > 0].sum() == pytest.approx(
            math.fsum(finite), rel=1e-6, abs=1
        )


def test_attempts_are_never_put_together() -> None:
    condensed_curve = condensed(curve("loss", [1.0, 2.0, 9.0, 8.0], attempts=[0, 0, 1, 1]), 100)
    assert condensed_curve.attempts.tolist() == [0, 1]
    assert condensed_curve.high.tolist() == [2.0, 9.0]


def test_thousands_of_attempts_are_still_few_stretches() -> None:
    result = fitted(curve("loss", np.ones(5000), attempts=np.arange(5000)), 1000)
    assert len(result) <= 1001


def test_a_sketch_of_a_million_steps_stays_small_and_keeps_the_spike_of_one() -> None:
    sketch = CurveSketch(Signal("loss"))
    for step in range(1, 200_001):
        sketch.add(step * 5, 1e6 if step == 77_777 else math.nan if step == 123_456 else 2.0, 0)
    result = sketch.curve()
    assert MAX_STRETCHES / 2 <= len(result) <= MAX_STRETCHES
    assert np.nanmax(result.high) == 1e6
    assert result.steps[np.nanargmax(result.high)] <= 77_777 * 5
    assert result.nonfinite.sum() == 1
    assert result.counts.sum() == 199_999


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
