"""Peaks of one process between two exchanges."""

from __future__ import annotations

import math
import random

from mlflow_stability.probes.ranks.rank_row import (
    SETTLED_AFTER,
    PeakWatch,
    RankPeaks,
    z_of_all,
)


def trained(processes: int, losses: dict[int, float], captures: int = 120) -> tuple[PeakWatch, RankPeaks]:
    watch, dice = PeakWatch(processes), random.Random(0)
    for capture in range(1, captures + 1):
        peaks = watch.take(capture, losses.get(capture, 1.0 + 0.05 * dice.random()), 0.01)
    return watch, peaks


def test_noise_is_no_spike_and_even_times_are_not_slow() -> None:
    assert trained(4, {})[1] == RankPeaks()


def test_the_first_spike_is_reported_with_its_baseline() -> None:
    _, peaks = trained(1, {100: 3.0, 101: 4.0})
    assert (peaks.spike, peaks.spike_loss) == (100, 3.0)
    assert 1.0 < peaks.spike_level < 1.05
    assert peaks.spike_z > z_of_all(1)


def test_a_spike_that_counts_for_all_hides_behind_no_small_one() -> None:
    _, peaks = trained(1024, {100: 1.6, 118: 1e6})
    assert peaks.spike == 118
    assert peaks.spike_z > z_of_all(1024)


def test_a_loss_that_is_not_finite_is_no_spike() -> None:
    _, peaks = trained(1, {100: math.nan, 101: math.inf})
    assert (peaks.broken, peaks.spike) == (100, 0)


def test_what_came_after_the_row_was_made_is_sent_with_the_next_one() -> None:
    watch, peaks = trained(1, {119: 3.0})
    later = watch.take(121, math.nan, 0.01)
    watch.sent(peaks)
    assert watch.now == later
    watch.sent(later)
    assert watch.now == RankPeaks()


def test_the_longest_capture_is_reported_with_the_usual_time() -> None:
    watch = PeakWatch(2)
    for capture in range(1, SETTLED_AFTER + 1):
        watch.take(capture, 1.0, 2.0 if capture < 3 else 0.01)
    assert watch.now == RankPeaks(), "the first captures compile"
    for capture, seconds in ((20, 0.5), (21, 3.0), (22, 1.0)):
        watch.take(capture, 1.0, seconds)
    assert (watch.now.slow, watch.now.slow_seconds, watch.now.slow_usual) == (21, 3.0, 0.01)


def test_they_travel_as_numbers_and_arrive_with_steps_of_the_recording() -> None:
    sent = RankPeaks(0, 7, 3.0, 1.0, 40.0, 9, 2.0, 0.1)
    arrived = RankPeaks._make(map(float, sent))
    assert arrived == sent
    assert arrived.at_steps(100) == RankPeaks(0, 107, 3.0, 1.0, 40.0, 109, 2.0, 0.1)
