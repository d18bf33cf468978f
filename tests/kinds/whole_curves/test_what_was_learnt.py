"""Whole curves of what has been learnt: no rule takes a change of next to nothing for trouble."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_named, run_of

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.loss.divergence_curve import DivergenceRule
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import RunHistory


def serious(history: RunHistory) -> list[tuple[str, int]]:
    return [
        (finding.kind, finding.start) for finding in diagnosis_of(history).findings if finding.severity > Severity.INFO
    ]


def learnt(count: int, every: int = 1) -> np.ndarray:
    steps = np.arange(0, count, every)
    return (2.3 * np.exp(-steps / 25) + 1e-7) * np.exp(np.random.default_rng(5).normal(0, 0.1, len(steps)))


@pytest.mark.parametrize("every", [1, 10])
def test_a_rise_at_the_end_of_next_to_nothing_is_no_divergence(every: int) -> None:
    steps = np.arange(0, 2000, every)
    risen = np.interp(steps, [0, 1400, 2000], [1, 1, 30])
    assert serious(run_of(metric_of("loss", learnt(2000, every) * risen, steps=steps))) == []
    wide = run_of(metric_of("loss", learnt(2000, every) * np.where(steps >= 1400, 1e6, 1.0), steps=steps))
    assert "divergence" in {kind for kind, _ in serious(wide)}


def test_jumps_within_next_to_nothing_are_no_spikes_and_a_jump_out_of_it_is_one() -> None:
    losses = learnt(1000)
    losses[[600, 800]] *= [300, 900]
    assert serious(run_named(loss=losses)) == []
    losses[800] = 0.5
    assert serious(run_named(loss=losses)) == [("loss_spike", 800)]


def test_last_points_high_only_relative_to_an_almost_zero_loss_are_no_divergence() -> None:
    losses = learnt(1000)
    losses[-4:] = 1e-5
    assert serious(run_named(loss=losses)) == []
    losses[-4:] = 1.0
    assert [kind for kind, _ in serious(run_named(loss=losses))] == ["divergence"]


def test_a_low_loss_may_fall_to_exactly_zero() -> None:
    losses = learnt(400)
    losses[300:] = 0.0
    assert serious(run_named(loss=losses)) == []


def test_a_divergence_from_a_loss_of_exactly_zero_is_reported_without_division_by_zero() -> None:
    losses = np.concatenate([[0.6, 0.5, 0.4, 0.0, 0.0, 0.0], np.full(8, 0.9)])
    assert serious(run_named(loss=losses)) == [("divergence", 6)]


def test_a_zero_before_the_first_loss_is_no_level_to_rise_from() -> None:
    assert serious(run_named(loss=[0.0, 0.529, 0.533, 0.539, 0.526, 0.528, 0.530, 0.531, 0.514])) == []


def test_a_divergence_by_one_jump_begins_at_the_jump() -> None:
    for seed in range(20):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.4, 800))
        losses = np.r_[0.01 + 2.4 * np.exp(-np.arange(400) / 40), np.full(400, 4.0)] * noise
        findings = DivergenceRule().find(run_curves(run_named(loss=losses)))
        assert [process.start for process in findings] == [400], seed
