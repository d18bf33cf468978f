"""Means of many values show a rise in which no single value is an outlier."""

from __future__ import annotations

from collections import deque

import pytest

from mlflow_stability.detectors.slow_rise import LATE_MEANS, MAX_Z, MIN_Z, STRETCHES_PER_MEAN, STRIDE, SlowRise

SPREAD = 0.1


def means_of(sigmas: list[float]) -> list[float]:
    """The means of values that are these numbers of σ above 1.0."""
    rise = SlowRise()
    for z in sigmas:
        rise.take(1.0 + z * SPREAD, z, SPREAD)
    return list(rise.means)


def test_a_mean_is_that_of_the_last_values_and_there_is_one_for_each_stretch() -> None:
    count = STRIDE * STRETCHES_PER_MEAN
    sigmas = [0.1 * (number % 11) for number in range(2 * count)]
    means = means_of(sigmas)
    assert len(means) == STRETCHES_PER_MEAN + 1
    for at, mean in enumerate(means):
        assert mean == pytest.approx(1.0 + SPREAD * sum(sigmas[at * STRIDE : at * STRIDE + count]) / count)


@pytest.mark.parametrize(("far", "limit"), [(50.0, MAX_Z), (-50.0, MIN_Z)])
def test_a_single_outlier_counts_no_more_than_the_largest_usual_value(far: float, limit: float) -> None:
    usual = [0.0] * STRIDE * STRETCHES_PER_MEAN
    assert means_of([far, *usual[1:]]) == pytest.approx(means_of([limit, *usual[1:]]))
    assert means_of([far, *usual[1:]]) != pytest.approx(means_of(usual))


@pytest.mark.parametrize("ago", [STRETCHES_PER_MEAN, 2 * STRETCHES_PER_MEAN])
def test_what_was_as_high_one_or_two_means_ago_does_not_rise(ago: int) -> None:
    means = [2.0] + [1.0] * 20 + [3.0]
    assert SlowRise(deque(means)).rise() == 2.0
    means[-1 - ago] = 3.0
    assert SlowRise(deque(means)).rise() == 0.0


@pytest.mark.parametrize(
    ("means", "share"),
    [
        ([1.0] * 30 + [2.0] * (LATE_MEANS + 1), 0.0),
        ([1.0] * 30 + [2.0] * LATE_MEANS, 1.0),
        ([1.0 + 0.01 * number for number in range(33)], 0.5),
        ([1.0] * 10 + [0.5] * 10 + [2.0], 1.0),
        ([1.0] * 30 + [3.0] + [2.0] * LATE_MEANS, -1.0),
    ],
)
def test_the_share_of_a_rise_that_came_late_tells_a_rise_from_a_level_that_was_reached(
    means: list[float], share: float
) -> None:
    rise = SlowRise(deque(means))
    assert rise.late_share(means[-1] - means[0]) == pytest.approx(share)
