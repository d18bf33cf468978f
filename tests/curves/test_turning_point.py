"""How often noise alone looks like a turn, and how often a turn is seen: where the thresholds come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlflow_stability.curves.turning_point import chance_turn_share, turn_share

Floats = NDArray[np.float64]


def noise(rng: np.random.Generator, points: int) -> Floats:
    """Of one of the kinds that validation losses have, with a standard deviation of 1."""
    kind = rng.integers(5)
    white = rng.standard_normal(points)
    if kind == 1:
        return rng.standard_t(3, points) / np.sqrt(3)
    if kind == 2:
        return (rng.gamma(2, 1, points) - 2) / np.sqrt(2)
    if kind in (3, 4):
        memory = (0.5, 0.8)[kind - 3]
        for at in range(1, points):
            white[at] = memory * white[at - 1] + np.sqrt(1 - memory**2) * white[at]
    return white


def without_turn(rng: np.random.Generator, points: int) -> Floats:
    """An exponential or power-law decay, one in steps, one of a single point, or none at all."""
    where, high = np.linspace(0, 1, points), rng.uniform(0.1, 2)
    courses = (
        high * np.exp(-where / rng.uniform(0.03, 0.4)),
        high * (1 + points * where) ** -rng.uniform(0.3, 1.2),
        high * (0.7 * np.exp(-where / 0.1) + 0.3 * (where < rng.uniform(0.3, 0.8))),
        high * (where == 0),
        0 * where,
    )
    return courses[rng.integers(5)] + np.exp(rng.uniform(np.log(0.002), np.log(0.15))) * noise(rng, points)


def with_turn(rng: np.random.Generator, points: int, rise: float, deviation: float) -> Floats:
    where, at = np.linspace(0, 1, points), rng.uniform(0.15, 0.6)
    fall = np.clip(np.exp(-3 * where / at) - np.exp(-3), 0, None)
    return fall + rise * np.clip((where - at) / (1 - at), 0, 1) + deviation * noise(rng, points)


def ends_above_its_best(x: Floats) -> bool:
    last, width = max(3, round(0.2 * len(x))), max(3, len(x) // 10)
    levels = np.median(np.lib.stride_tricks.sliding_window_view(x[: max(width, len(x) - last + 1)], width), axis=1)
    return float(np.median(x[-last:]) - levels.min()) > 0.04


@pytest.mark.parametrize("points", [6, 8, 15, 30, 100, 300])
def test_few_curves_without_a_turn_show_one_and_rise_by_more_than_their_noise(points: int) -> None:
    rng = np.random.default_rng(points)
    curves = [without_turn(rng, points) for _ in range(400)]
    alarms = [turn_share(x) >= chance_turn_share(points) for x in curves if ends_above_its_best(x)]
    assert sum(alarms) <= 0.03 * len(curves)


@pytest.mark.parametrize(("points", "least"), [(8, 0.6), (15, 0.8), (30, 0.9), (100, 0.95), (1000, 0.99)])
def test_a_rise_of_eight_deviations_of_the_noise_is_seen(points: int, least: float) -> None:
    rng = np.random.default_rng(points)
    seen = [turn_share(with_turn(rng, points, 0.32, 0.04)) >= chance_turn_share(points) for _ in range(200)]
    assert np.mean(seen) >= least


@settings(max_examples=100)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=200),
    st.floats(1e-3, 1e3),
    st.floats(-1e3, 1e3),
)
def test_it_is_a_share_and_a_curve_that_never_rises_has_none(values: list[float], unit: float, level: float) -> None:
    x = np.array(values)
    assert 0 <= turn_share(x) <= 1
    assert turn_share(np.sort(x)[::-1] * unit + level) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("scale", [1e150, 1e307])
def test_the_share_of_values_that_have_no_squares_is_that_of_smaller_ones(scale: float) -> None:
    x = np.array([8.0, 5, 4, 3, 2.5, 3.5, 3, 5, 6, 7])
    assert turn_share(scale * x) == pytest.approx(turn_share(x))
    assert turn_share(x) > 0.5
