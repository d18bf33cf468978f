from __future__ import annotations

import numpy as np
import pytest
from detectors.series import Floats, decaying, judged, noise, readings

from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.kinds.catalog import detectors_named
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

ONE, OTHER = (Signal("loss"),), (Signal("loss", "track_1"),)

steps = np.arange(1000)


def findings(loss: Floats) -> list[Finding]:
    return judged("divergence", loss=loss)


HEALTHY = {
    "decay": decaying(1000) + noise(1, 1000, 0.05),
    "fast decay": decaying(1000, over=25) + noise(2, 1000, 0.05),
    "noisy": decaying(1000) + noise(3, 1000, 0.2),
    "power law": 6 * (steps + 10) ** -0.2 * np.exp(noise(4, 1000, 0.03)),
    "step schedule": np.where(steps < 500, 2.0, 1.2) * np.exp(noise(5, 1000, 0.03)),
    "fine-tuning": 1.08 + 0.22 * np.exp(-steps / 40) + noise(6, 1000, 0.03),
    "noise that grows": np.exp(-steps / 400) * np.exp(noise(7, 1000) * (0.02 + steps / 5000)),
    "epochs": (2 - 0.3 * (steps // 250)) * np.exp(noise(8, 1000, 0.03)),
    "epochs of seen data": np.array([1.1, 0.7, 0.39])[steps // 400]
    * (1 + np.maximum(0, steps - 800) / 1500)
    * np.exp(noise(13, 1000, 0.04)),
    "rounded": np.round((decaying(1000) + noise(9, 1000, 0.01)) * 64) / 64,
    "constant": np.full(1000, 2.0),
    "around zero": noise(10, 1000, 0.4),
    "around zero, drifting": noise(11, 1000, 0.4) + steps / 1500,
    "spiky": decaying(1000) * np.where(steps % 97 == 0, 3.0, 1.0) + noise(12, 1000, 0.03),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_loss_is_silent(name: str) -> None:
    assert findings(HEALTHY[name]) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_jump_of_35_percent_is_found_within_12_steps(seed: int) -> None:
    (event,) = findings((2 + noise(seed, 1000, 0.03)) * np.where(steps < 700, 1.0, 1.35))
    assert event.step <= 711
    assert event.severity is Severity.CRITICAL


@pytest.mark.parametrize("at", [36, 40, 44])
@pytest.mark.parametrize("seed", range(3))
def test_a_jump_within_the_first_fifty_steps_is_found_though_the_baseline_is_short(at: int, seed: int) -> None:
    losses = decaying(100, 20.0, 190.0, 20.0) * (1 + noise(seed, 100, 0.03))
    losses[at:] = 6 * losses[at - 1] * (1 + noise(seed + 9, 100 - at, 0.1))
    findings = judged("divergence", loss=losses)
    assert findings
    assert at + 11 <= findings[0].step <= at + 16


def test_a_divergence_has_the_step_of_its_first_high_loss_besides_the_step_of_detection() -> None:
    (event,) = findings((2 + noise(0, 1000, 0.03)) * np.where(steps < 700, 1.0, 2.0))
    assert (event.step, event.metrics["first_high"]) == (711, 700)


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_of_a_fifth_of_a_percent_a_step_is_found_within_80_steps(seed: int) -> None:
    drifting = (2 + noise(seed, 900, 0.03)) * 1.002 ** np.maximum(0, np.arange(900) - 700)
    assert 700 < findings(drifting)[0].step <= 780


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_rise_under_a_falling_loss_is_a_warning_before_it_is_large(seed: int) -> None:
    rising = decaying(800) + np.clip((np.arange(800) - 400) / 600, 0, 1) + noise(seed, 800, 0.05)
    event = findings(rising)[0]
    assert 400 < event.step <= 575
    assert event.severity is Severity.WARNING
    assert 0.04 <= event.metrics["rise"] < 0.15


def test_a_continuing_slow_rise_becomes_critical() -> None:
    rising = 2 + np.clip((np.arange(3000) - 500) / 1000, 0, 2) + noise(1, 3000, 0.05)
    severities = [event.severity for event in findings(rising)]
    assert severities[0] is Severity.WARNING
    assert Severity.CRITICAL in severities
    assert len(severities) <= 3


def test_a_run_that_explodes_is_one_or_two_findings_and_not_one_a_step() -> None:
    loss = (decaying(1000) + noise(2, 1000, 0.05)) * np.exp(np.maximum(0, steps - 600) / 100)
    events = findings(loss)
    assert 1 <= len(events) <= 2
    assert events[0].step < 660
    assert events[-1].severity is Severity.CRITICAL


def test_a_new_level_is_reported_once() -> None:
    assert len(findings(np.where(np.arange(4000) < 500, 2.0, 3.0) + noise(3, 4000, 0.03))) == 1


def test_after_it_has_come_back_the_next_is_another() -> None:
    loss = 2 + noise(4, 3000, 0.03)
    loss[800:850] += 1.5
    loss[2000:2050] += 1.5
    assert [event.step // 100 for event in findings(loss)] == [8, 20]


def test_a_second_jump_from_a_level_that_became_the_baseline_is_another_divergence() -> None:
    loss = np.select([np.arange(5000) < 500, np.arange(5000) < 3000], [2.0, 3.0], 4.5) + noise(8, 5000, 0.03)
    assert [(event.step // 100, event.severity) for event in findings(loss)] == [
        (5, Severity.CRITICAL),
        (30, Severity.CRITICAL),
    ]


def test_a_rise_over_hundreds_of_powers_of_ten_is_survived() -> None:
    assert findings(np.exp(np.linspace(-700, 340, 1000)))[-1].severity is Severity.CRITICAL


def level(to: float, sigma: float = 0.02) -> Floats:
    """A loss that steps up at step 600 and stays there."""
    return 2.0 * np.exp(noise(3, 1000, sigma)) * np.where(steps < 600, 1.0, to)


@pytest.mark.parametrize(("to", "severities"), [(1.13, [Severity.WARNING]), (1.5, [Severity.CRITICAL])])
def test_a_divergence_is_critical_where_low_sensitivity_finds_it(to: float, severities: list[Severity]) -> None:
    events = findings(level(to))
    assert [event.severity for event in events] == severities
    low = replay(readings({"loss": level(to)}), at_sensitivity(detectors_named(["divergence"]), "low"))
    assert any("of the last 16 steps" in event.message for event in low) == (severities[-1] is Severity.CRITICAL)


def test_a_divergence_that_becomes_critical_later_knows_when_it_began() -> None:
    loss = level(1.13)
    loss[608:] *= 1.3
    warning, critical = findings(loss)
    assert (warning.severity, critical.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert warning.score < 1.5 <= critical.score
    assert critical.metrics["onset"] == warning.step - 16


def test_non_finite_values_are_neither_high_nor_low() -> None:
    loss = 2 + noise(5, 1000, 0.03)
    loss[500:] = np.nan
    assert findings(loss) == []


def test_a_loss_that_can_be_negative_diverges_when_it_jumps() -> None:
    loss = noise(6, 1000, 0.3) - 3.0
    assert findings(loss) == []
    loss[700:] += 12.0
    assert findings(loss)[0].step <= 720


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.6, 0.9])
def test_correlated_noise_is_no_drift(phi: float) -> None:
    noisy, last = noise(7, 20_000, 0.05), 0.0
    for step, fresh in enumerate(noisy):
        last = noisy[step] = phi * last + fresh
    assert findings(2 + noisy) == []


def taking_turns(first: Floats, second: Floats) -> list[Finding]:
    """The losses of two trainings that step one after the other."""
    rows = []
    for step, (loss, other) in enumerate(zip(first, second, strict=True)):
        rows.append(StepReading(2 * step, ONE, (float(loss),)))
        rows.append(StepReading(2 * step + 1, OTHER, (float(other),)))
    return replay(rows, detectors_named(["divergence"]))


def test_a_player_whose_loss_rises_as_the_other_learns_has_not_diverged() -> None:
    rising = 0.7 * np.exp(noise(1, 1000, 0.1)) * np.where(steps < 500, 1.0, 3.0)
    falling = 1.4 * np.exp(noise(2, 1000, 0.1)) * np.exp(-steps / 800)
    assert taking_turns(falling, rising) == []
    assert taking_turns(rising, falling) == []


def test_a_player_whose_loss_blows_up_has_diverged() -> None:
    blown = 0.7 * np.exp(noise(1, 1000, 0.1)) * np.where(steps < 500, 1.0, 30.0)
    (event,) = taking_turns(1.4 * np.exp(noise(2, 1000, 0.1)), blown)
    assert (event.place, event.severity) == ("track_1", Severity.CRITICAL)


@pytest.mark.parametrize("seed", [1, 5, 13, 27])
def test_a_loss_that_has_been_negative_may_wander_while_it_is_positive(seed: int) -> None:
    assert findings(np.cumsum(np.random.default_rng(seed).normal(size=2000) * 0.1)) == []


def test_a_loss_that_has_been_negative_may_still_diverge() -> None:
    loss = 1 + noise(3, 1000, 0.05)
    loss[:10] = -0.5
    loss[800:] += 2
    (event,) = findings(loss)
    assert event.severity is Severity.CRITICAL
    assert event.step < 820
    assert "(8σ)" in event.message
