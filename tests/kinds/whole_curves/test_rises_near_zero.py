from __future__ import annotations

import numpy as np
from diagnosis.histories import metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import RunHistory


def serious(run: RunHistory) -> list[tuple[str, int]]:
    return [(finding.kind, finding.start) for finding in diagnosis_of(run).findings if finding.severity > Severity.INFO]


def by_heart(points: int, seed: int = 0) -> np.ndarray:
    """A loss that is near zero soon, and very noisy there."""
    return 2.3 * np.exp(-np.arange(points) / 2) + 2e-3 * np.exp(np.random.default_rng(seed).normal(0, 0.9, points))


def test_one_hard_example_is_no_spike_and_several_lost_points_are() -> None:
    hard, lost = by_heart(200), by_heart(200)
    hard[120], lost[118:128] = 0.4, 2.0
    assert serious(run_of(metric_of("train_loss", hard))) == []
    assert [kind for kind, _ in serious(run_of(metric_of("train_loss", lost)))] == ["loss_spike"]


def test_a_hard_batch_moves_loss_and_gradient_and_is_no_spike_where_the_tail_is_heavy() -> None:
    for seed in range(1, 4):
        rng = np.random.default_rng(seed)
        leaps = rng.standard_exponential(1200)
        loss = 0.3 * np.exp(-np.arange(1200) / 60) + 0.02 * np.exp(0.5 * leaps)
        norm = 0.5 * np.exp(0.5 * leaps + rng.normal(0, 0.1, 1200))
        assert serious(run_of(metric_of("loss", loss), metric_of("grad_norm", norm))) == []


def test_a_player_whose_loss_crosses_zero_has_no_best_level_to_rise_from() -> None:
    rng = np.random.default_rng(1)
    critic = -2.6 * np.exp(-np.arange(400) / 120) + rng.normal(0, 0.1, 400)
    lost = critic + np.where(np.arange(400) > 340, 6000.0, 0.0)
    assert serious(run_of(metric_of("critic_loss", critic))) == []
    assert [kind for kind, _ in serious(run_of(metric_of("critic_loss", lost)))] == ["divergence"]
