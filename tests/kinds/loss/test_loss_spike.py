from __future__ import annotations

import math

import numpy as np
import pytest
from detectors.series import at, decaying, judged, noise

from mlflow_stability.vocabulary.result import Severity

healthy = decaying(1000) + noise(0, 1000, 0.05)


def test_a_healthy_loss_is_silent() -> None:
    assert judged("loss_spike", loss=healthy) == []


@pytest.mark.parametrize("factor", [1.6, 2.0, 4.0, 20.0])
@pytest.mark.parametrize("steps", [1, 2])
def test_one_or_two_high_losses_are_information(factor: float, steps: int) -> None:
    (event,) = judged("loss_spike", loss=at(healthy, 600, factor, steps))
    assert (event.step, event.severity) == (600, Severity.INFO)


@pytest.mark.parametrize("factor", [1.6, 2.0, 4.0])
@pytest.mark.parametrize("steps", [3, 8, 40])
def test_a_spike_that_lasts_is_a_warning_at_its_third_step(factor: float, steps: int) -> None:
    first, worse = judged("loss_spike", loss=at(healthy, 600, factor, steps))
    assert (first.step, first.severity) == (600, Severity.INFO)
    assert (worse.step, worse.severity) == (602, Severity.WARNING)
    assert worse.message == first.message.replace("σ).", "σ); high in 3 of 3 steps.")
    assert worse.metrics["since"] == 600


def test_a_single_high_loss_that_leaves_the_loss_higher_is_a_warning() -> None:
    raised = at(decaying(1000) + noise(0, 1000, 0.1), 600, 5.0)
    raised[601:641] = 1.85
    first, worse = judged("loss_spike", loss=raised)
    assert (first.step, first.severity) == (600, Severity.INFO)
    assert (worse.step, worse.severity) == (616, Severity.WARNING)
    assert "the next 16 losses are near 1.85, above their baseline of 1.5" in worse.message


def test_the_third_spike_in_a_thousand_steps_is_a_warning() -> None:
    loss = np.concatenate([healthy, healthy[-1] + noise(8, 3000, 0.05)])
    for step in (600, 1900, 2300, 2700):
        loss[step] *= 3
    findings = judged("loss_spike", loss=loss)
    assert [(e.step, e.severity) for e in findings] == [
        (600, Severity.INFO),
        (1900, Severity.INFO),
        (2300, Severity.INFO),
        (2700, Severity.WARNING),
    ]
    assert findings[-1].message.endswith("; number 3 since step 1900.")


def test_a_restart_of_the_learning_rate_excuses_what_follows_a_spike() -> None:
    rate = np.concatenate([1e-3 * np.cos(np.linspace(0, 1.55, 500))] * 2)
    raised = at(at(healthy, 495, 5.0), 501, 1.3, 60)
    assert [e.severity for e in judged("loss_spike", loss=raised)] == [Severity.INFO, Severity.WARNING]
    assert [e.severity for e in judged("loss_spike", loss=raised, learning_rate=rate)] == [Severity.INFO]


def test_it_says_what_happened_with_numbers() -> None:
    (event,) = judged("loss_spike", loss=at(np.full(300, 2.0), 250, 3.0))
    assert event.message == "loss 6 at step 250, 549.3σ above its baseline of 2 (threshold 12σ)."
    assert event.metrics["loss"] == 6.0
    assert event.metrics["level"] == pytest.approx(2.0)
    assert str(event.remedies[0]) == "Lower the learning rate by a factor of 2 to 5."


def test_a_hundredfold_spike_is_critical_and_is_reported_even_after_a_smaller_one() -> None:
    spiked = at(at(healthy, 600, 3.0), 601, 500.0)
    assert [(e.step, e.severity) for e in judged("loss_spike", loss=spiked)] == [
        (600, Severity.INFO),
        (601, Severity.CRITICAL),
    ]


def test_two_spikes_with_calm_between_them_are_two_findings() -> None:
    assert [e.step for e in judged("loss_spike", loss=at(at(healthy, 600, 2.0), 650, 2.0))] == [600, 650]


def test_a_rise_of_less_than_5_percent_is_no_spike_however_quiet_the_loss() -> None:
    quiet = np.full(600, 2.0)
    assert judged("loss_spike", loss=at(quiet, 500, 1.04)) == []
    assert len(judged("loss_spike", loss=at(quiet, 500, 1.06))) == 1


def test_loss_and_gradient_agreeing_count_at_a_lower_limit() -> None:
    loss, norm = 2 + noise(1, 800, 0.1), np.exp(noise(2, 800, 0.3))
    small = loss.copy()
    small[600] = 2.0 * math.exp(0.05 * 7)  # seven widths
    assert judged("loss_spike", loss=small, grad_norm=norm) == []
    (event,) = judged("loss_spike", loss=small, grad_norm=at(norm, 600, 30.0))
    assert event.step == 600
    assert event.metrics["grad_norm_z"] > 6
    (again,) = judged("loss_spike", grad_norm=at(norm, 600, 30.0), loss=small)  # whichever comes first
    assert again.step == 600
    assert judged("loss_spike", loss=small, grad_norm=at(norm, 601, 30.0)) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_nan_or_infinity_does_not_hide_a_later_spike(bad: float) -> None:
    loss, norm = at(healthy, 450, 3.0), np.exp(noise(3, 1000, 0.2))
    loss[400] = norm[400] = bad
    findings = [(e.step, e.kind) for e in judged(loss=loss, grad_norm=norm)]
    assert findings == [(400, "nan_detected" if math.isnan(bad) else "inf_detected"), (450, "loss_spike")]


@pytest.mark.slow
def test_noise_with_a_heavy_tail_raises_the_limit() -> None:
    random = np.random.default_rng(4)
    heavy = np.maximum(2 + 0.03 * random.standard_t(3, 20_000), 0.1)
    assert len(judged("loss_spike", loss=heavy)) <= 2
    assert len(judged("loss_spike:classic", loss=heavy)) > 100
    (event,) = [e for e in judged("loss_spike", loss=at(heavy, 19_000, 3.0)) if e.step == 19_000]
    assert event.metrics["limit"] > 15


@pytest.mark.parametrize("slope", [0.0, 0.001])
def test_a_policy_gradient_loss_around_zero_is_silent_and_its_spike_is_found(slope: float) -> None:
    loss = noise(5, 1000, 0.3) + slope * np.arange(1000)
    assert judged("loss_spike divergence", loss=loss) == []
    loss[700] += 9.0
    assert [e.step for e in judged("loss_spike", loss=loss)] == [700]


def test_a_loss_that_is_mostly_zero_is_silent() -> None:
    hinge = np.maximum(0.0, noise(6, 3000, 0.2) - 0.15)
    assert judged("loss_spike divergence", loss=hinge) == []


def test_a_restart_of_the_learning_rate_excuses_the_rise_that_follows_it() -> None:
    rate = np.concatenate([1e-3 * np.cos(np.linspace(0, 1.55, 500))] * 2)
    loss = 1.6 + 0.4 * np.concatenate([rate[:1], rate[:-1]]) / 1e-3 + noise(7, 1000, 0.01)  # a step later
    assert {e.kind for e in judged("loss_spike divergence", loss=loss)} != set()
    assert judged("loss_spike divergence", loss=loss, learning_rate=rate) == []
    beyond = rate * np.where(np.arange(1000) >= 500, 3.0, 1.0)  # to where it has never been
    assert judged("loss_spike divergence", loss=loss, learning_rate=beyond) != []


def test_the_same_spike_is_found_at_any_scale_of_the_loss() -> None:
    for scale in (1e-6, 1.0, 1e6):
        assert [e.step for e in judged("loss_spike", loss=at(healthy, 600, 2.0) * scale)] == [600]
