"""A return that collapses and stays at its floor is found; healthy returns, however noisy, are not."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import run_named
from numpy.typing import NDArray

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.loss.divergence_rules import ReturnFallRule
from mlflow_stability.vocabulary.result import Severity

POINTS = np.arange(300)


def learned(seed: int) -> NDArray[np.float64]:
    """Returns of CartPole: from 20 to up to 500, with a spread as large as the mean."""
    level = 20 + 300 / (1 + np.exp(-(POINTS - 100) / 20))
    return np.minimum(500, level * np.random.default_rng(seed).gamma(3, 1 / 3, len(POINTS)))


def collapsed(seed: int, last: int) -> NDArray[np.float64]:
    values = learned(seed)
    values[-last:] = 9 + np.random.default_rng(seed).poisson(1, last)
    return values


def severities_of(values: NDArray[np.float64], name: str = "charts/episodic_return") -> list[Severity]:
    return [finding.severity for finding in ReturnFallRule().find(run_curves(run_named(**{name: values})))]


@pytest.mark.parametrize("seed", range(0, 20, 4))
def test_a_noisy_return_that_rises_or_forgets_half_has_not_collapsed(seed: int) -> None:
    assert severities_of(learned(seed)) == []
    half = learned(seed)
    half[200:] *= 0.4
    assert severities_of(half) == []
    assert severities_of(np.random.default_rng(seed).gamma(2, 10, len(POINTS))) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_return_that_fell_back_to_its_start_is_a_warning_once_it_has_lasted(seed: int) -> None:
    assert severities_of(collapsed(seed, 60)) == [Severity.WARNING]
    assert severities_of(collapsed(seed, 16)) == [Severity.INFO]
    assert severities_of(collapsed(seed, 4)) == []
    assert severities_of(collapsed(seed, 60), "temperature") == []


def test_the_verdict_tells_of_the_return_where_the_loss_has_no_level() -> None:
    diagnosis = diagnosis_of(run_named(loss=np.full(300, 0.5), episode_reward=collapsed(1, 60)))
    assert diagnosis.outcome == "diverged"
    assert "episode_reward fell from about" in diagnosis.verdict
