from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.curves.prominence import find_bumps
from mlflow_stability.kinds.loss.loss_spike_curve import SpikeRule
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning


def spikes(history: RunHistory) -> list[Finding]:
    return SpikeRule().find(run_curves(history))


def noise(count: int, sigma: float = 0.03, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, sigma, count)


@pytest.mark.parametrize(("count", "length"), [(20, 3), (50, 5), (50, 9), (120, 20), (400, 60), (2000, 300)])
def test_a_raised_stretch_is_found_from_its_first_point_to_its_last(count: int, length: int) -> None:
    x = noise(count)
    first = count // 2
    x[first : first + length] += 1.0
    (bump,) = find_bumps(x, 7.0, 0.26)
    assert (bump.first, bump.last) == (first, first + length - 1)
    assert bump.height == pytest.approx(1.0, abs=0.15)


@given(
    st.lists(st.floats(-50, 50), min_size=3, max_size=200),
    st.integers(0, 150),
    st.integers(1, 40),
    st.floats(-20, 20),
)
@settings(max_examples=80)
def test_no_two_bumps_touch_and_each_lies_within_the_curve(x: list[float], at: int, length: int, by: float) -> None:
    curve = np.array(x)
    curve[at : at + length] += by
    bumps = sorted(find_bumps(curve, 3.0, 0.1), key=lambda bump: bump.first)
    assert all(0 < bump.first <= bump.last < len(curve) and bump.height >= 0.1 for bump in bumps)
    assert all(first.last < other.first for first, other in pairwise(bumps))


@given(st.lists(st.floats(0, 3), min_size=8, max_size=150))
@settings(max_examples=100)
def test_no_bump_is_found_in_a_monotone_curve(moves: list[float]) -> None:
    x = np.cumsum(moves)
    assert find_bumps(x, 3.0, 0.1) == find_bumps(-x, 3.0, 0.1) == []


@pytest.mark.parametrize("length", [3, 4, 6, 12, 24])
def test_a_spike_of_several_points_is_one_spike_with_its_first_step_and_its_worst(length: int) -> None:
    losses = falling(200)
    losses[100 : 100 + length] *= np.exp(np.linspace(1.5, 0.6, length))
    (episode,) = spikes(run_named(loss=losses))
    assert (episode.start, episode.peak, episode.severity) == (100, 100, Severity.WARNING)
    assert episode.end - 99 == pytest.approx(length, abs=1)
    assert episode.recovered
    assert f"and recovered after {episode.end - 99} points." in episode.message


def test_a_spike_that_builds_up_over_epochs_is_found_where_it_begins() -> None:
    losses = 1.0 * np.exp(noise(100))
    losses[60:68] *= np.exp([0.4, 0.9, 1.4, 1.9, 2.3, 2.4, 1.1, 0.5])
    (episode,) = spikes(run_named(val_loss=losses))
    assert (episode.metric, episode.peak, episode.end) == ("val_loss", 65, 66)
    assert 60 <= episode.start <= 61
    assert "val_loss rose from about " in episode.message


def test_an_overshoot_over_a_quarter_of_the_steps_is_a_warning_and_over_few_steps_it_is_info() -> None:
    up = [12.4, 12.5, 41.0, 43.1, 38.2, 33.9, 31.0, 25.3, 22.4, 20.1, 18.7, 17.2, 15.8, 14.1, 12.6, 11.0]
    down = 11.0 * np.exp(-np.arange(33) / 80 + noise(33, 0.01))
    (episode,) = spikes(run_named(loss=[*up, *down]))
    assert (episode.start, episode.peak, episode.severity) == (2, 3, Severity.WARNING)
    at = [*range(16), *(100 * np.arange(1, 34))]
    (episode,) = spikes(run_of(metric_of("loss", [*up, *down], steps=at)))
    assert episode.severity is Severity.INFO


def test_a_ripple_on_the_way_down_undoes_nothing() -> None:
    x = np.arange(60)
    losses = 5 * np.exp(-x / 6) + 0.05
    losses[8:12] *= 1.6
    assert spikes(run_named(loss=losses * np.exp(noise(60, 0.01)))) == []


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_correlated_noise_is_not_a_spike(sigma: float, seed: int) -> None:
    fresh = noise(600, sigma, seed)
    wandering = np.zeros(600)
    for place in range(1, 600):
        wandering[place] = 0.9 * wandering[place - 1] + fresh[place]
    assert spikes(run_named(loss=2 * np.exp(wandering))) == []


def test_two_neighbouring_outliers_in_heavy_tailed_noise_are_not_a_bump() -> None:
    tails = 0.1 * np.random.default_rng(3).standard_t(3, 3000)
    assert find_bumps(tails, 7.0, 0.26) == []


@pytest.mark.parametrize("length", [1, 8])
def test_a_loss_that_is_negative_is_judged_in_its_own_spread(length: int) -> None:
    losses = -2000 + 1000 * np.exp(-np.arange(150) / 20) + 15 * noise(150, 1.0)
    assert spikes(run_named(loss=losses)) == []
    losses[90 : 90 + length] += 1500
    (episode,) = spikes(run_named(loss=losses))
    assert (episode.start, episode.end, episode.severity) == (90, 89 + length, Severity.WARNING)
    assert episode.metrics["before"] == pytest.approx(-2000, abs=60)


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_is_mostly_zero_is_not_judged_by_its_spread(seed: int) -> None:
    losses = np.exp(-np.arange(300) / 20) * np.exp(noise(300, 0.6, seed))
    losses[losses < 1e-3] = 0.0
    assert spikes(run_named(loss=losses)) == []


def test_a_mean_over_epochs_is_judged_beside_single_steps_that_saw_nothing() -> None:
    steps, epochs = 2 * np.exp(noise(400, 0.2)), 2 * np.exp(noise(80, 0.03, 1))
    epochs[40:45] *= [1.5, 3.0, 5.0, 4.0, 2.0]
    finer = metric_of("train_loss_step", steps, meaning=Meaning("loss", "", is_known=True))
    again = Meaning("loss", "", is_known=True, duplicate_of="train_loss_step")
    means = metric_of("train_loss_epoch", epochs, meaning=again, steps=5 * np.arange(80))
    (episode,) = spikes(run_of(finer, means))
    assert (episode.metric, episode.peak) == ("train_loss_epoch", 210)
    copied = metric_of("train_loss_epoch", steps[::5], meaning=again, steps=5 * np.arange(80))
    assert run_curves(run_of(finer, copied)).averages == ()


def test_a_spike_is_measured_against_the_noise_that_the_curve_has_there() -> None:
    calm, wild = noise(300, 0.02), noise(60, 0.6, 1)
    losses = np.exp(np.concatenate([calm, wild]))
    losses[330] = 6.0
    assert spikes(run_named(loss=losses)) == []
    quiet = np.exp(np.concatenate([calm, calm[:60]]))
    quiet[330] = 6.0
    assert [spike.start for spike in spikes(run_named(loss=quiet))] == [330]


def test_one_high_validation_loss_out_of_six_is_a_spike_and_noise_is_not() -> None:
    validations = [2.0, 1.8, 1.65, 4.2, 1.5, 1.45]
    (episode,) = spikes(run_named(val_loss=validations))
    assert (episode.metric, episode.start) == ("val_loss", 3)
    assert spikes(run_named(val_loss=[2.0, 1.8, 1.65, 1.9, 1.5, 1.6])) == []
    assert spikes(run_named(val_loss=validations[:5])) == []


@pytest.mark.parametrize(
    ("count", "places"), [(60, [13, 25, 35, 46]), (100, [22, 35, 65, 82]), (60, [8, 18, 30, 41, 52])]
)
def test_several_spikes_of_a_short_smooth_curve_do_not_hide_each_other(count: int, places: list[int]) -> None:
    losses = 3 * np.exp(-np.arange(count) / 40) * np.exp(noise(count, 0.01))
    losses[places] *= np.linspace(2.0, 4.0, len(places))
    assert [spike.start for spike in spikes(run_named(loss=losses))] == places
