"""A spike of a whole curve is as severe as what came of it."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.catalog import choose_detectors
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.result.finding import Finding


def spikes_of(losses: np.ndarray, every: int = 1) -> list[Finding]:
    history = run_of(metric_of("loss", losses, steps=np.arange(0, len(losses) * every, every)))
    return [finding for finding in diagnosis_of(history).findings if finding.kind == "loss_spike"]


@pytest.mark.parametrize("factor", [1.2, 1.3])
def test_one_high_loss_of_a_long_log_is_information(factor: float) -> None:
    losses = falling(1000)
    losses[600] *= factor
    (spike,) = spikes_of(losses)
    assert (spike.start, spike.severity, spike.recovered) == (600, Severity.INFO, True)
    assert diagnosis_of(run_named(loss=losses)).outcome == "healthy"


@pytest.mark.parametrize("factor", [1.6, 5.0])
def test_one_high_loss_that_undid_much_of_the_progress_is_a_warning_though_it_recovered(factor: float) -> None:
    losses = falling(1000)
    losses[600] *= factor
    assert [spike.severity for spike in spikes_of(losses)] == [Severity.WARNING]


@pytest.mark.parametrize("count", [3, 10])
def test_a_spike_of_several_losses_is_a_warning(count: int) -> None:
    losses = falling(1000)
    losses[600 : 600 + count] *= 2
    (spike,) = spikes_of(losses)
    assert spike.severity is Severity.WARNING


def test_one_point_of_a_short_log_that_undid_much_of_the_progress_is_a_warning() -> None:
    small, large = falling(60), falling(60)
    small[40] *= 1.15
    large[40] *= 1.8
    assert [spike.severity for spike in spikes_of(large, every=50)] == [Severity.WARNING]
    assert all(spike.severity is Severity.INFO for spike in spikes_of(small, every=50))


def test_one_high_loss_after_which_the_loss_stays_higher_is_a_warning() -> None:
    losses = falling(1000)
    losses[600] *= 1.25
    losses[601:610] *= 1.12
    assert Severity.WARNING in {spike.severity for spike in spikes_of(losses)}


def test_three_single_spikes_are_warnings() -> None:
    losses = falling(2000)
    losses[[600, 1100, 1500]] *= 1.25
    assert [(spike.start, spike.severity) for spike in spikes_of(losses)] == [
        (step, Severity.WARNING) for step in (600, 1100, 1500)
    ]
    losses = falling(4000)
    losses[[900, 2100, 3400]] *= 1.25
    assert [spike.severity for spike in spikes_of(losses)] == [Severity.INFO] * 3


def test_a_single_spike_above_a_threshold_of_ones_own_is_a_warning() -> None:
    losses = falling(1000)
    losses[600] *= 1.6
    asked = choose_detectors(["default", LossSpike(threshold=8.0, threshold_alone=True)])
    findings = diagnosis_of(run_named(loss=losses), detectors=asked).findings
    assert [finding.severity for finding in findings if finding.kind == "loss_spike"] == [Severity.WARNING]
