from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, run_named
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlflow_stability.curves.curve_shape import read_curve, spike_score
from mlflow_stability.curves.curves import Curve, curves_of
from mlflow_stability.curves.levels import STRETCHES, make_sketch
from mlflow_stability.vocabulary.result import CurveReading


def curve_of(values: object) -> Curve:
    (curve,) = curves_of(run_named(loss=values), "loss")  # type: ignore[arg-type]
    return curve


def read(values: object) -> CurveReading:
    reading = read_curve(curve_of(values))
    assert reading is not None
    return reading


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (-0.5, "strong"),
        (-0.21, "strong"),
        (-0.1, "steady"),
        (-0.03, "marginal"),
        (-0.005, "flat"),
        (0.005, "flat"),
        (0.1, "rising"),
    ],
)
def test_the_trend_is_the_change_from_the_first_level_to_the_last(change: float, word: str) -> None:
    reading = read(np.r_[np.full(50, 2.0), np.full(50, 2.0 * (1 + change))])
    assert reading.trend == word
    assert reading.change == pytest.approx(change)


def test_a_curve_that_fell_within_its_first_tenth_began_where_it_left() -> None:
    noise = np.exp(np.random.default_rng(0).normal(0, 0.1, 1000))
    reading = read((0.05 + np.exp(-np.arange(1000) / 10)) * noise)
    assert reading.first_level == pytest.approx(0.9, abs=0.15)
    assert reading.last_level == pytest.approx(0.05, rel=0.05)
    assert (reading.trend, reading.shape) == ("strong", "decay")


def test_noise_alone_leaves_the_first_level_to_the_whole_tenth() -> None:
    values = np.exp(np.random.default_rng(0).normal(0, 0.3, 1000))
    assert read(values).first_level == np.median(values[:100])


def test_a_single_lucky_point_makes_no_explosion_of_what_follows() -> None:
    values = np.geomspace(0.6, 0.15, 180) * np.exp(np.random.default_rng(0).normal(0, 0.4, 180))
    values[175] = 0.005
    assert read(values).shape == "decay"


def test_a_curve_that_left_its_start_upwards_at_once_has_risen_though_it_fell_afterwards() -> None:
    reading = read(np.r_[3.6, 11.8, 30.0, np.geomspace(50, 15.6, 147)])
    assert (reading.trend, reading.shape) == ("rising", "")
    assert reading.change is not None
    assert 3 < reading.change < 5


def test_a_lucky_first_value_of_a_very_noisy_curve_is_no_level() -> None:
    values = np.geomspace(50, 15.6, 150) * np.exp(np.random.default_rng(0).normal(0, 0.8, 150))
    values[0] = 8.0
    assert read(values).trend == "strong"


@pytest.mark.parametrize(("noise", "word"), [(0.02, "smooth"), (0.1, "noisy"), (0.4, "very noisy")])
def test_stability_is_how_the_last_tenth_varies_around_its_own_line(noise: float, word: str) -> None:
    last = np.linspace(2, 1.5, 100) + noise * 1.75 * np.where(np.arange(100) % 2, 1, -1)
    assert read(np.r_[np.full(900, 3.0), last]).stability == word


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("decay", falling(300)),
        ("plateau", np.full(300, 2.0) + np.random.default_rng(0).normal(0, 0.01, 300)),
        ("u-shape", 2 + (np.arange(300) / 150 - 1) ** 2 + np.random.default_rng(0).normal(0, 0.01, 300)),
        ("explosion", np.r_[falling(200), 2 * np.exp(np.arange(100) / 20)]),
    ],
)
def test_shapes_are_named(shape: str, values: np.ndarray) -> None:
    assert read(values).shape == shape


@pytest.mark.parametrize(
    ("health", "values"),
    [
        ("broken", [3.0, 2.0, math.nan]),
        ("exploding", np.linspace(2, 900, 20)),
        ("ok", np.linspace(1e13, 1e7, 20)),
        ("converged", np.geomspace(1, 1e-8, 40)),
        ("ok", np.linspace(3, 1, 20)),
    ],
)
def test_health_is_that_of_the_end(health: str, values: object) -> None:
    assert read(values).health == health


def test_noise_is_not_monotone_a_wave_oscillates_and_a_line_is_monotone() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 400)
    assert read(2 + 0.3 * noise).pattern == "not monotone"
    assert read(2 + 0.5 * np.sin(np.arange(400) / 3) + 0.05 * noise).pattern == "oscillating"
    assert read(np.geomspace(4, 1, 400)).pattern == "monotone"
    assert read(np.linspace(5, 1, 400)).pattern == "monotone"
    assert read(np.linspace(1, 5, 400)).pattern == "monotone"
    assert read(np.full(400, 5.0)).pattern == ""


def test_the_expected_end_of_a_decay_is_its_asymptote_and_of_noise_there_is_none() -> None:
    steps = np.arange(400)
    assert read(1.5 + 3 * np.exp(-steps / 100)).expected_final == pytest.approx(1.5, rel=0.03)
    assert read(2 + np.random.default_rng(0).normal(0, 0.1, 400)).expected_final is None


def test_the_spike_score_is_the_share_of_values_seven_deviations_off() -> None:
    values = np.random.default_rng(0).normal(3, 0.1, 3000)
    assert spike_score(values[:1000]) is None
    assert spike_score(values) == 0
    values[[1500, 2500]] += 2
    assert spike_score(values) == pytest.approx(2 / 2000)


def test_a_few_points_are_not_described() -> None:
    reading = read([3.0, 2.0, 1.0])
    assert (reading.trend, reading.stability, reading.pattern, reading.shape) == ("", "", "", "")
    assert (reading.first, reading.last, reading.best, reading.best_step) == (3.0, 1.0, 1.0, 2)


@given(arrays.arrays(np.float64, st.integers(2, 2000), elements=st.floats(width=64)))
def test_a_sketch_is_small_and_loses_no_peak(values: np.ndarray) -> None:
    sketch = make_sketch(curve_of(values))
    assert len(sketch.steps) == len(sketch.low) == len(sketch.high) <= STRETCHES
    finite = curve_of(values).values[curve_of(values).finite]
    if len(finite):
        assert np.nanmax(sketch.high) == finite.max()
        assert np.nanmin(sketch.low) == finite.min()
    else:
        assert np.isnan(sketch.low).all()
