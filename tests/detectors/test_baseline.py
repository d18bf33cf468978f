from __future__ import annotations

import math

import numpy as np
import pytest
from detectors.series import Floats, at, decaying, noise
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_stability.detectors.baseline import MINIMUM, READMIT_AFTER, SHORT_WINDOW, UNKNOWN_TAIL, WINDOW, Baseline


def z_of(values: Floats | list[float], baseline: Baseline | None = None) -> Floats:
    baseline = baseline or Baseline()
    result = []
    for value in values:
        baseline.take(float(value))
        result.append(baseline.z)
    return np.array(result)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 60), st.floats(0, 2)), max_size=12
    )
)
def test_z_is_never_nan_whatever_finite_values_come(stretches: list[tuple[float, int, float]]) -> None:
    baseline = Baseline()
    for value, times, growth in stretches:
        for number in range(times):
            grown = value * growth**number if abs(value) < 1e200 else value
            if math.isfinite(grown):
                baseline.take(grown)
                assert math.isfinite(baseline.z)
                assert math.isfinite(baseline.center)
                assert math.isfinite(baseline.scale)
                assert baseline.scale >= 0


def test_the_level_is_the_lower_median_of_the_last_32_and_the_last_256_values() -> None:
    values = [3.0 * 0.99**number + 0.1 * (number % 7) * 0.99**number for number in range(600)]
    logarithms = [math.log(value) for value in values]
    baseline = Baseline()
    for number, value in enumerate(values):
        baseline.take(value)
        assert baseline.accepted
        if number >= MINIMUM:
            windows = [sorted(logarithms[max(0, number - length) : number]) for length in (WINDOW, SHORT_WINDOW)]
            level = min(window[len(window) // 2] for window in windows)
            assert baseline.center == pytest.approx(math.exp(level))


def test_nothing_is_an_outlier_before_there_are_enough_values() -> None:
    assert set(z_of([1.0] * (MINIMUM - 1) + [50.0])[:MINIMUM]) == {0.0}
    assert z_of([1.0] * MINIMUM + [50.0])[-1] > 100


@pytest.mark.parametrize("over", [10.0, 50.0, 150.0, 1000.0])
@pytest.mark.parametrize("width", [0.002, 0.05, 0.2])
def test_a_falling_loss_is_never_an_outlier(over: float, width: float) -> None:
    assert z_of(decaying(3000, over=over) + noise(1, 3000, width)).max() < 6


def test_a_loss_that_stops_falling_is_not_an_outlier() -> None:
    steps = np.concatenate([np.linspace(9, 2, 400), np.full(400, 2.0)]) + noise(2, 800, 0.03)
    assert z_of(steps).max() < 6


def test_a_spike_is_seen_soon_after_a_fast_fall() -> None:
    for at_step in (120, 300, 600):
        spiked = at(decaying(1000) + noise(3, 1000, 0.05), at_step, 2.0)
        assert z_of(spiked)[at_step] > 12


def test_outliers_do_not_move_the_level() -> None:
    values = np.full(600, 2.0) + noise(4, 600, 0.02)
    values[300:400] = 9.0
    baseline = Baseline()
    z = z_of(values[:400], baseline)
    assert baseline.center == pytest.approx(2.0, abs=0.02)
    assert (z[300:400] > 50).all()
    assert np.abs(z_of(values[400:], baseline)).max() < 6


def test_a_new_level_is_normal_after_a_while() -> None:
    values = np.concatenate([np.full(400, 2.0), np.full(600, 5.0)]) + noise(5, 1000, 0.03)
    z = z_of(values)
    assert (z[400 : 400 + READMIT_AFTER] > 8).all()
    assert np.abs(z[400 + READMIT_AFTER + 1 :]).max() < 6


def test_a_new_level_becomes_normal_even_if_some_values_return_to_the_old_one() -> None:
    values = np.concatenate([np.full(400, 2.0), np.where(np.arange(900) % 4, 5.0, 2.0)]) + noise(6, 1300, 0.03)
    assert (z_of(values)[-300:] < 8).all()


def test_noise_with_a_heavy_tail_raises_what_counts_as_rare() -> None:
    plain, heavy = Baseline(), Baseline()
    random = np.random.default_rng(7)
    z_of(2 + 0.03 * random.standard_normal(20_000), plain)
    z_of(np.maximum(2 + 0.03 * random.standard_t(3, 20_000), 0.1), heavy)
    assert plain.tail < 8 < 15 < heavy.tail


@pytest.mark.parametrize("center", [0.0, -3.0, 0.05])
def test_values_at_or_below_zero_are_compared_by_differences(center: float) -> None:
    baseline = Baseline()
    values = center + noise(8, 2000, 0.3)
    assert np.abs(z_of(values, baseline)).max() < 7
    assert not baseline.logarithmic
    baseline.take(center + 9.0)
    assert baseline.z > 15


def test_ratios_are_compared_again_once_all_values_are_positive() -> None:
    baseline = Baseline()
    z = z_of(np.concatenate([noise(9, 300, 0.3), 4 + noise(10, 800, 0.1)]), baseline)
    assert baseline.logarithmic
    assert np.abs(z[-300:]).max() < 6
    baseline.take(8.0)
    assert baseline.z == pytest.approx(math.log(8 / 4) / (0.1 / 4), rel=0.3)


def test_a_loss_that_is_mostly_zero_is_never_an_outlier() -> None:
    values = np.zeros(1000)
    values[::40] = 0.5
    assert set(z_of(values)) == {0.0}


def test_multiplying_a_positive_signal_changes_nothing() -> None:
    values = decaying(800) + noise(11, 800, 0.1)
    assert z_of(values * 1000.0) == pytest.approx(z_of(values), abs=1e-6)


def test_a_lasting_high_level_does_not_change_the_estimated_tail() -> None:
    baseline = Baseline()
    for value in np.exp(noise(7, 1000, 0.03)).tolist():
        baseline.take(value)
    tail = baseline.tail
    for step in range(60):
        baseline.take(1.2 + 0.05 * (step % 2))
        assert baseline.tail == tail


def test_heavy_noise_is_learnt_once_each_outlier_has_passed() -> None:
    baseline = Baseline()
    for value in np.exp(0.03 * np.random.default_rng(8).standard_t(3, 4000)).tolist():
        baseline.take(value)
    assert baseline.tail > 15


def test_a_value_is_usual_near_a_well_known_level() -> None:
    baseline, young, signed = Baseline(), Baseline(), Baseline()
    z_of(2.0 * np.exp(noise(1, 400, 0.03)), baseline)
    z_of(2.0 * np.exp(noise(1, 100, 0.03)), young)
    z_of(noise(2, 400, 0.3), signed)
    assert [baseline.is_usual(value, 5.0) for value in (1.1, 2.0, 2.1)] == [True] * 3
    assert [baseline.is_usual(value, 5.0) for value in (-2.0, 0.0, 0.9, 2.6)] == [False] * 4
    assert not young.is_usual(2.0, 5.0)
    assert [signed.is_usual(value, 5.0) for value in (-3.6, -1.0, 0.0, 1.0, 2.0)] == [False, True, True, True, False]


def after_high_values(at: range) -> float:
    """The tail that is learnt from quiet values, with some that are 5σ above their level."""
    baseline = Baseline()
    for number in range(400):
        high = baseline.center * math.exp(5 * baseline.scale)
        baseline.take(high if number in at else math.exp(0.01 * (number % 2)))
    return baseline.tail


def test_high_values_are_learnt_as_a_tail_only_once_the_noise_is_known() -> None:
    quiet = after_high_values(range(0))
    assert 5 < quiet < UNKNOWN_TAIL
    assert after_high_values(range(60, 110, 10)) == quiet
    assert after_high_values(range(260, 310, 10)) > quiet + 1
