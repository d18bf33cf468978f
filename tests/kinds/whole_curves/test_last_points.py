from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity

nan = math.nan


@pytest.mark.parametrize("count", [3, 5, 8, 12, 20])
def test_a_loss_that_explodes_in_its_last_points_has_diverged_and_the_verdict_gives_the_last_value(count: int) -> None:
    losses = falling(2000)
    losses[-count:] *= np.exp(2.0 * np.arange(1, count + 1))
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert (diagnosis.outcome, diagnosis.severity) == ("diverged", Severity.CRITICAL)
    (episode,) = [finding for finding in diagnosis.findings if finding.kind == "divergence"]
    assert (episode.start, episode.end, episode.recovered) == (2000 - count, 1999, False)
    assert f"ended at {losses[-1]:.4g}" in diagnosis.verdict


@pytest.mark.parametrize("count", [3, 12, 20])
def test_a_loss_that_jumps_fivefold_in_its_last_points_has_diverged(count: int) -> None:
    losses = falling(2000)
    losses[-count:] *= 5
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert diagnosis.outcome == "diverged"
    assert f"ended at {losses[-1]:.4g}" in diagnosis.verdict


def test_a_blow_up_that_came_back_before_the_end_is_no_divergence_to_the_end() -> None:
    losses = falling(2000)
    losses[1900:1910] *= 50
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert diagnosis.outcome == "unstable"
    assert "its last value" not in diagnosis.verdict


@pytest.mark.slow
def test_a_single_high_point_at_the_very_end_is_named_with_its_value() -> None:
    losses = falling(2000, noise=0.1)
    losses[-1] = 31.5
    verdict = diagnosis_of(run_named(loss=losses)).verdict
    assert verdict.startswith("Unstable: a loss spike at step 1999")
    assert "31.5" in verdict


def test_a_loss_that_freezes_at_zero_after_noise_is_stuck() -> None:
    losses = falling(400)
    losses[250:] = 0.0
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert diagnosis.outcome == "stuck"
    assert "to exactly 0 in one point, at step 250, and stayed there" in diagnosis.verdict


def test_a_loss_that_is_zero_all_along_is_stuck() -> None:
    assert diagnosis_of(run_named(loss=np.zeros(100))).verdict.startswith("Stuck: loss is exactly 0 in all of its 100")


def test_a_loss_that_is_rounded_down_to_zero_has_converged() -> None:
    losses = np.round(2 * np.exp(-np.arange(400) / 20) * np.exp(np.random.default_rng(0).normal(0, 0.2, 400)), 4)
    assert losses[-1] == 0
    assert diagnosis_of(run_named(loss=losses)).outcome == "healthy"


@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_the_log_s_rounding_near_zero_is_no_spike(seed: int) -> None:
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.2, 4000))
    losses = np.round(2 * np.exp(-np.arange(4000) / 200) * noise, 4)
    assert diagnosis_of(run_named(loss=losses)).outcome == "healthy"


def test_a_loss_that_is_missing_at_the_end_is_not_called_healthy() -> None:
    losses, rates = metric_of("loss", falling(1500)), metric_of("lr", np.full(2000, 1e-3))
    diagnosis = diagnosis_of(run_of(losses, rates))
    text = "loss has no value after step 1499, but lr continues to step 1999"
    assert (diagnosis.outcome, diagnosis.verdict) == ("cannot_tell", f"Cannot tell: {text}.")
    assert any(text in str(value) for value in diagnosis.cannot_tell)
    assert diagnosis.severity is Severity.INFO


def test_a_loss_that_is_logged_more_rarely_than_the_rate_goes_on_to_the_end() -> None:
    losses, rates = metric_of("loss", falling(100), steps=10 * np.arange(100)), metric_of("lr", np.full(1000, 1e-3))
    assert diagnosis_of(run_of(losses, rates)).outcome == "healthy"


def test_a_gradient_that_breaks_a_step_before_the_loss_is_where_it_begins() -> None:
    losses, norms = falling(1200), np.exp(np.random.default_rng(1).normal(0, 0.1, 1200))
    losses[1000:], norms[999:] = nan, nan
    diagnosis = diagnosis_of(run_named(loss=losses, grad_norm=norms))
    (episode,) = diagnosis.findings
    assert (episode.kind, episode.start, episode.metric, episode.end) == ("nan_detected", 999, "grad_norm", 1199)
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "gradient_non_finite"
    assert diagnosis.cause.statement.startswith("The gradient was non-finite first: grad_norm at step 999")
    norms[999] = 1.0
    assert diagnosis_of(run_named(loss=losses, grad_norm=norms)).findings[0].start == 1000


@pytest.mark.parametrize("grown", [20.0, 60.0])
def test_gradients_that_grow_gradually_while_the_loss_rises_are_found_and_are_the_cause(grown: float) -> None:
    rng, steps = np.random.default_rng(2), np.arange(3000)
    norms = np.exp(rng.normal(0, 0.2, 3000)) * np.minimum(1e4, np.exp(np.maximum(0, steps - 2500) / grown))
    losses = falling(3000) * np.maximum(1, 1 + (steps - 2600) / 200)
    diagnosis = diagnosis_of(run_named(loss=losses, grad_norm=norms))
    explosions = [finding for finding in diagnosis.findings if finding.kind == "gradient_explosion"]
    assert [2500 <= explosion.start <= 2560 for explosion in explosions] == [True]
    assert diagnosis.outcome == "diverged"
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "gradient_explosion"
    assert not [
        finding
        for finding in diagnosis_of(run_named(loss=falling(3000), grad_norm=norms)).findings
        if finding.metrics.get("grown")
    ]


def test_the_verdict_says_near_if_the_end_is_the_median_of_several_points() -> None:
    losses = falling(2000, noise=0.05)
    losses[1500:] *= 3
    assert f"ended near {np.median(losses[-5:]):.4g}" in run_verdict(losses)


def test_a_loss_that_ends_as_nan_is_reported_with_its_last_finite_value() -> None:
    losses = np.r_[falling(60), 8.0, 150.0, 4e5, 2.2e12, 2.14e25, np.full(60, nan)]
    (episode,) = [
        finding
        for finding in diagnosis_of(run_named(loss=losses)).findings
        if finding.kind == "divergence" and not finding.recovered
    ]
    assert "last finite value 2.14e+25" in episode.message


def run_verdict(losses: np.ndarray) -> str:
    return diagnosis_of(run_named(loss=losses)).verdict


@pytest.mark.parametrize("end", [[3.07, 0.5, 0.02, 4.3e-4], [3.07, 0.5, 0.02, 0.03], [3.07, 2.9, 2.8, 2.6]])
def test_a_short_curve_that_still_comes_back_from_a_jump_is_information(end: list[float]) -> None:
    losses = np.r_[np.geomspace(0.23, 5.6e-5, 7), end]
    diagnosis = diagnosis_of(run_named(loss=losses))
    (finding,) = [finding for finding in diagnosis.findings if finding.kind == "divergence"]
    assert (finding.severity is Severity.INFO) is (end[-1] == 4.3e-4)
    assert (diagnosis.outcome == "diverged") is (end[-1] != 4.3e-4)


@pytest.mark.parametrize(("rise", "outcome"), [(1.11, "healthy"), (2.0, "diverged")])
def test_the_last_two_of_many_points_need_a_clear_rise(rise: float, outcome: str) -> None:
    losses = falling(72, noise=0.01)
    losses[-2:] *= rise
    assert diagnosis_of(run_named(loss=losses)).outcome == outcome


@pytest.mark.parametrize(
    "losses",
    [(2.3, 26.0, 3e4), (0.85, 2.4, 6.3e4, 1.1e13), (2.0, 1.5, 1.2, 14.0, 1e3), (1.0, 0.9, 9.5, 100.0, 1.1e3, 2e4)],
)
def test_a_few_losses_that_explode_have_diverged_from_the_first_large_rise_on(losses: tuple[float, ...]) -> None:
    diagnosis = diagnosis_of(run_named(loss=np.array(losses)))
    (finding,) = [finding for finding in diagnosis.findings if finding.kind == "divergence"]
    rises = np.array(losses[1:]) / np.array(losses[:-1])
    assert finding.severity is Severity.CRITICAL
    assert finding.start == 1 + int(np.argmax(rises >= 10))
    assert f"ended at {losses[-1]:.4g}" in diagnosis.verdict


@pytest.mark.parametrize("losses", [(2.3, 26.0), (2.3, 1.9, 40.0), (2.3, 30.0, 290.0), (1.0, 50.0, 900.0, 800.0)])
def test_a_few_losses_of_which_one_is_high_are_not_judged(losses: tuple[float, ...]) -> None:
    assert not diagnosis_of(run_named(loss=np.array(losses))).findings
