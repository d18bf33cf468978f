from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.loss.divergence_curve import DivergenceRule
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory


def divergences_of(history: RunHistory) -> list[Finding]:
    return DivergenceRule().find(run_curves(history))


def noise(count: int, sigma: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, sigma, count)


def test_the_end_of_a_sparse_log_that_train_and_validation_share_is_a_divergence() -> None:
    at = [1, 2, 3, 4, 5, 200, 400, 600, 800, *(1000 * np.arange(1, 12))]
    train = [6.9, 17.9, 10.1, 6.6, 6.1, 3.0, 2.7, 2.9, 2.6, 2.65, 2.5, 2.46, 2.36, 2.3, 2.47, 2.4, 2.3, 2.24, 2.9, 3.6]
    losses = metric_of("train_loss", train, steps=at)
    validation = [2.6, 2.48, 2.42, 2.40, 2.38, 2.37, 2.36, 2.34, 2.34, 2.9, 3.6]
    (episode,) = divergences_of(run_of(losses, metric_of("val_loss", validation, steps=1000 * np.arange(1, 12))))
    assert (episode.start, episode.end) == (10_000, 11_000)
    fell = [*train[:-2], 2.22, 2.2]
    assert divergences_of(run_of(metric_of("train_loss", fell, steps=at))) == []


@pytest.mark.parametrize(("size", "sigma"), [(0.3, 0.01), (0.4, 0.1), (0.7, 0.1), (1.2, 0.2), (2.6, 0.2)])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
def test_a_step_that_lasts_is_named_where_it_is(size: float, sigma: float, share: float) -> None:
    losses = falling(600, noise=sigma, first=4.0)
    first = round(600 * (1 - share))
    losses[first:] = losses[first - 20 : first].mean() * np.exp(size + noise(600 - first, sigma))
    (episode,) = divergences_of(run_named(loss=losses))
    assert first - 15 <= episode.start <= first + 3
    assert episode.recovered is False


@pytest.mark.parametrize("count", [30, 100, 1000])
def test_a_slow_rise_over_most_of_the_run_is_a_divergence_from_its_first_third(count: int) -> None:
    first = round(0.3 * count)
    losses = np.concatenate([np.linspace(3.0, 1.0, first), np.exp(np.linspace(0, 0.8, count - first))])
    (episode,) = divergences_of(run_named(loss=losses * np.exp(noise(count, 0.03))))
    assert first <= episode.start <= first + 0.3 * count


def test_a_negative_loss_that_lost_half_of_what_it_had_learnt_has_diverged() -> None:
    losses = -6 + 8 * np.exp(-np.arange(120) / 15) + noise(120, 0.1)
    assert divergences_of(run_named(loss=losses)) == []
    losses[100:] += 5.0
    (episode,) = divergences_of(run_named(loss=losses))
    assert episode.start == 100


@pytest.mark.parametrize("seed", range(12))
def test_a_policy_s_loss_that_wanders_around_zero_has_not_diverged(seed: int) -> None:
    assert divergences_of(run_named(loss=np.cumsum(noise(300, 0.01, seed)) + noise(300, 0.02, seed + 50))) == []


def test_a_loss_of_exactly_zero_is_no_number_to_divide_by() -> None:
    losses = falling(60)
    losses[30] = 0.0
    losses[50:] *= 4
    assert diagnosis_of(run_named(loss=losses)).outcome == "diverged"
    low = np.r_[np.linspace(3, 0.01, 20), np.zeros(30), np.full(20, 2.0)]
    assert "; best level 0 at step" in diagnosis_of(run_named(loss=low)).verdict
