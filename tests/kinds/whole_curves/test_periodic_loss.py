from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.progress.oscillation import PeriodicLossFacts, PeriodicLossRule
from mlflow_stability.vocabulary.result import Action, Finding, Severity

STEPS = np.arange(2000)


def noise(seed: int, deviation: float = 0.05, count: int = 2000) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, deviation, count)


def square(period: int, low: float = 1.7, high: float = 3.3) -> NDArray[np.float64]:
    return np.where(STEPS % period < period / 2, low, high)


def findings_of(losses: NDArray[np.float64], rates: NDArray[np.float64] | None = None) -> tuple[Finding, ...]:
    metrics = [metric_of("loss", losses.tolist())]
    if rates is not None:
        metrics.append(metric_of("learning_rate", rates.tolist()))
    return diagnosis_of(run_of(*metrics)).findings


def facts_of(finding: Finding) -> PeriodicLossFacts:
    assert isinstance(finding.facts, PeriodicLossFacts)
    return finding.facts


@pytest.mark.parametrize("period", [2, 40, 97])
def test_a_loss_that_swings_is_one_finding_with_its_period(period: int) -> None:
    (finding,) = [finding for finding in findings_of(square(period) + noise(1)) if finding.severity > Severity.INFO]
    assert finding.kind == "periodic_loss"
    assert finding.remedies[0].action is Action.LOWER_LEARNING_RATE
    facts = facts_of(finding)
    assert facts.period == pytest.approx(period, rel=0.05)
    assert (facts.low, facts.high) == (pytest.approx(1.7, rel=0.1), pytest.approx(3.3, rel=0.1))


def test_it_begins_where_the_loss_begins_to_swing() -> None:
    falling = 2.5 + 3.5 * np.exp(-STEPS / 150)
    losses = np.where(STEPS < 800, falling, square(40)) + noise(2)
    (finding,) = [finding for finding in findings_of(losses) if finding.severity > Severity.INFO]
    assert finding.kind == "periodic_loss"
    assert finding.start == pytest.approx(800, abs=80)
    assert (finding.end, facts_of(finding).last_step, finding.recovered) == (1999, 1999, False)


def test_it_ends_where_the_loss_becomes_calm_and_what_rises_later_is_another_finding() -> None:
    losses = np.where(STEPS < 1600, square(40), 1.7) + noise(8)
    (finding,) = [finding for finding in findings_of(losses) if finding.severity > Severity.INFO]
    assert finding.end == pytest.approx(1600, abs=80)
    assert finding.recovered is True
    losses[1900:] += 1.5
    kinds = [finding.kind for finding in findings_of(losses) if finding.severity > Severity.INFO]
    assert kinds[0] == "periodic_loss"
    assert "divergence" in kinds[1:]


@pytest.mark.slow
def test_a_loss_that_was_zero_once_is_not_reported() -> None:
    losses = square(40) + noise(9)
    losses[700] = 0.0
    assert not [finding for finding in findings_of(losses) if finding.kind == "periodic_loss"]


def test_a_rise_beyond_the_swing_is_a_divergence_of_its_own() -> None:
    losses = np.where(STEPS < 1900, square(40), 2.5 + 0.5 * (STEPS - 1900)) + noise(3)
    kinds = [finding.kind for finding in findings_of(losses) if finding.severity > Severity.INFO]
    assert sorted(kinds) == ["divergence", "periodic_loss"]


def test_stricter_thresholds_find_less() -> None:
    curves = run_curves(run_of(metric_of("loss", (square(40) + noise(1)).tolist())))
    assert [finding.severity for finding in PeriodicLossRule().find(curves)] == [Severity.WARNING]
    assert [finding.severity for finding in PeriodicLossRule(wide=3.0).find(curves)] == [Severity.INFO]
    for stricter in (PeriodicLossRule(mild=3.0), PeriodicLossRule(share=0.99), PeriodicLossRule(fewest=1500)):
        assert stricter.find(curves) == []


def test_a_small_swing_and_a_short_period_late_in_the_run_are_information() -> None:
    small = 2.5 + 0.35 * np.sin(2 * np.pi * STEPS / 60) + noise(4, 0.02)
    falling = 2.5 + 3.5 * np.exp(-STEPS / 150)
    late = np.where(STEPS < 900, falling, square(4)) + noise(5)
    for losses in (small, late):
        findings = [finding for finding in findings_of(losses) if finding.kind == "periodic_loss"]
        assert [finding.severity for finding in findings] == [Severity.INFO]


@pytest.mark.parametrize("period", [2, 3])
def test_a_few_batches_in_the_same_order_are_information_while_their_losses_fall(period: int) -> None:
    falling = 0.3 + 6 * np.exp(-STEPS / 600)
    losses = falling * np.where(STEPS % period == 0, 2.5, 1.0) * np.exp(noise(10, 0.01))
    findings = [finding for finding in findings_of(losses) if finding.kind == "periodic_loss"]
    assert [finding.severity for finding in findings] == [Severity.INFO]
    stays = np.where(STEPS % period == 0, 2.5, 1.0) * np.exp(noise(10, 0.01))
    assert [finding.severity for finding in findings_of(stays) if finding.kind == "periodic_loss"] == [Severity.WARNING]


def test_a_loss_that_follows_its_schedule_is_not_called_periodic() -> None:
    rates = 1e-3 * (1 + 0.9 * np.sin(2 * np.pi * STEPS / 100))
    losses = 2.5 * (1 + 0.4 * np.sin(2 * np.pi * STEPS / 100)) + noise(6)
    assert not [finding for finding in findings_of(losses, rates) if finding.kind == "periodic_loss"]
    assert [finding for finding in findings_of(losses, np.full(2000, 1e-3)) if finding.kind == "periodic_loss"]


def test_stairs_from_epoch_to_epoch_are_not_a_swing() -> None:
    stairs = 3.0 * 0.7 ** (STEPS // 100) + noise(7, 0.001)
    assert not [finding for finding in findings_of(np.maximum(stairs, 1e-3)) if finding.kind == "periodic_loss"]


@pytest.mark.slow
@given(
    st.integers(0, 10_000),
    st.sampled_from([200, 300, 2000]),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.floats(0, 0.98),
)
def test_noise_around_a_falling_loss_is_never_periodic(seed: int, count: int, width: float, memory: float) -> None:
    shocks = np.random.default_rng(seed).normal(0, width, count)
    walk = np.zeros(count)
    for step in range(1, count):
        walk[step] = memory * walk[step - 1] + shocks[step]
    walk *= width / max(walk.std(), 1e-9)
    losses = np.exp(1.0 - np.arange(count) / count + walk)
    assert not [
        finding
        for finding in findings_of(losses)
        if finding.kind == "periodic_loss" and finding.severity > Severity.INFO
    ]
