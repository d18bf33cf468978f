from __future__ import annotations

import numpy as np
import pytest
from detectors.series import at, decaying, judged, noise

from mlflow_stability.vocabulary.loss_level import LossLevel, NoLevel
from mlflow_stability.vocabulary.result import Severity, Topic

norms = np.exp(noise(0, 800, 0.31))


@pytest.mark.parametrize("steps", [1, 2])
def test_one_or_two_norms_of_twenty_times_the_usual_are_information(steps: int) -> None:
    (event,) = judged("gradient_explosion", grad_norm=at(norms, 600, 20.0, steps))
    assert (event.step, event.severity) == (600, Severity.INFO)


@pytest.mark.parametrize("level", [1e-4, 0.03, 1.0, 300.0])
def test_an_explosion_advises_to_clip_at_the_usual_norm(level: float) -> None:
    (event,) = judged("gradient_explosion", grad_norm=at(norms * level, 600, 20.0))
    (target,) = [remedy.target for remedy in event.remedies if remedy.topic is Topic.CLIP_GRADIENTS]
    assert target == pytest.approx(level, rel=0.1)


def test_the_third_explosion_in_a_thousand_steps_is_a_warning() -> None:
    findings = judged("gradient_explosion", grad_norm=at(at(at(norms, 300, 20.0), 500, 20.0), 700, 20.0))
    assert [finding.severity for finding in findings] == [Severity.INFO, Severity.INFO, Severity.WARNING]
    assert findings[-1].message.endswith("; number 3 since step 300.")


@pytest.mark.parametrize("level", [1e-4, 1.0, 300.0, 1e5])
def test_a_healthy_norm_of_any_size_is_silent(level: float) -> None:
    assert judged("gradient_explosion gradient_vanishing", grad_norm=norms * level) == []


def test_a_norm_at_twice_its_quiet_level_is_no_explosion() -> None:
    assert judged("gradient_explosion", grad_norm=at(np.full(600, 0.5), 500, 2.0)) == []


def test_a_thousand_is_critical_only_far_above_the_level() -> None:
    assert judged("gradient_explosion", grad_norm=at(norms, 600, 5000.0))[0].severity is Severity.CRITICAL
    assert judged("gradient_explosion", grad_norm=at(norms * 300, 600, 20.0))[0].severity is Severity.INFO


@pytest.mark.parametrize("reason", [NoLevel.ADVERSARIAL, NoLevel.BOOTSTRAPPED])
@pytest.mark.parametrize(("factor", "severities"), [(30.0, []), (3000.0, [Severity.CRITICAL])])
def test_where_the_loss_has_no_level_norms_at_thirty_times_the_usual_are_normal(
    reason: NoLevel, factor: float, severities: list[Severity]
) -> None:
    high = at(norms, 500, factor, 60)
    findings = judged("gradient_explosion", grad_norm=high, loss_without_level=np.full(800, LossLevel(reason).code))
    assert [finding.severity for finding in findings] == severities


def test_high_norms_without_a_consequence_are_information_while_the_loss_falls() -> None:
    for steps, factor in ((6, 20.0), (190, 50.0)):
        high = at(norms, 500, factor, steps)
        findings = judged("gradient_explosion", loss=decaying(800), grad_norm=high)
        assert [(finding.step, finding.severity) for finding in findings] == [(500, Severity.INFO)]
    often = at(at(at(norms, 300, 20.0), 500, 20.0), 700, 20.0)
    findings = judged("gradient_explosion", loss=decaying(800), grad_norm=often)
    assert [finding.severity for finding in findings] == [Severity.INFO] * 3


def test_high_norms_are_information_while_a_loss_below_zero_falls() -> None:
    high = at(norms, 500, 20.0, 6)
    flat = -3 + np.random.default_rng(0).normal(0, 0.1, 800)
    for losses, last in ((flat, Severity.WARNING), (5 - np.arange(800.0), Severity.INFO)):
        findings = judged("gradient_explosion", loss=losses, grad_norm=high)
        assert findings[-1].severity is last, losses[0]
    turning = np.r_[5 - np.arange(510.0), np.full(290, -100.0)]
    findings = judged("gradient_explosion", loss=turning, grad_norm=high)
    assert [finding.severity for finding in findings] == [Severity.INFO, Severity.WARNING]


def test_high_norms_are_information_where_a_loss_leaves_a_plateau_and_a_warning_where_it_rises_then() -> None:
    stuck = 4.16 + np.random.default_rng(0).normal(0, 0.01, 500)
    leaves = np.r_[stuck, 4.16 - 0.004 * np.arange(300)]
    high = at(norms, 515, 7.0, 285)
    findings = judged("gradient_explosion", loss=leaves, grad_norm=high)
    assert [finding.severity for finding in findings] == [Severity.INFO]
    rises = np.r_[leaves[:540], np.full(260, 4.3)]
    for losses in (rises, np.r_[stuck, stuck[:300]]):
        findings = judged("gradient_explosion", loss=losses, grad_norm=high)
        assert findings[-1].severity is Severity.WARNING


@pytest.mark.parametrize("rises_at", [500, 530])
def test_high_norms_become_a_warning_where_the_loss_gets_worse(rises_at: int) -> None:
    losses = at(decaying(800), rises_at, 2.0, 300)
    findings = judged("gradient_explosion", loss=losses, grad_norm=at(norms, 500, 20.0, 6))
    assert [finding.severity for finding in findings] == [Severity.INFO, Severity.WARNING]
    assert findings[0].step == 500
    assert rises_at < findings[1].step < rises_at + 30
    assert "since" in findings[1].metrics
    assert "times its lowest level" in findings[1].message


def test_a_loss_that_gets_worse_long_after_high_norms_is_not_their_consequence() -> None:
    losses = at(decaying(800), 600, 2.0, 200)
    findings = judged("gradient_explosion", loss=losses, grad_norm=at(norms, 500, 20.0, 6))
    assert [finding.severity for finding in findings] == [Severity.INFO]


def test_a_hundred_times_the_level_is_critical_also_while_the_loss_falls() -> None:
    huge = at(norms, 600, 5000.0, 3)
    assert judged("gradient_explosion", loss=decaying(800), grad_norm=huge)[0].severity is Severity.CRITICAL
    first = np.where(np.arange(800) < 20, 1e5, huge)
    findings = judged("gradient_explosion", loss=decaying(800), grad_norm=first)
    assert {finding.severity for finding in findings if finding.step >= 600} == {Severity.INFO}


def test_a_continuing_explosion_is_one_finding() -> None:
    findings = judged("gradient_explosion", grad_norm=at(norms, 500, 50.0, 190))
    assert [(finding.step, finding.severity) for finding in findings] == [(500, Severity.INFO), (502, Severity.WARNING)]
    assert findings[-1].metrics["since"] == 500


def test_a_vanished_gradient_is_reported_once() -> None:
    gone = norms * np.where(np.arange(800) < 500, 1.0, 1e-8)
    (event,) = judged("gradient_vanishing", loss=np.full(800, 2.3), grad_norm=gone)
    assert (event.step, event.severity) == (509, Severity.WARNING)


def test_a_tiny_gradient_is_natural_once_the_loss_has_fallen() -> None:
    gone = norms * np.where(np.arange(800) < 500, 1.0, 1e-8)
    assert judged("gradient_vanishing", loss=decaying(800, 0.01, 3.0), grad_norm=gone) == []


def test_a_tiny_gradient_is_natural_where_the_loss_fell_in_three_steps_as_with_lbfgs() -> None:
    shrinking = 10.0 ** -(np.arange(16) + 0.5)  # not exactly the threshold, which machines round differently
    fallen = np.where(np.arange(16) < 3, 2.0, 0.06)
    assert judged("gradient_vanishing", loss=fallen, grad_norm=np.maximum(shrinking, 1e-6)) == []
    (event,) = judged("gradient_vanishing", loss=np.full(16, 2.0), grad_norm=np.maximum(shrinking, 1e-6))
    assert event.step == 14


def test_the_gradient_of_a_loss_that_is_multiplied_by_a_small_number_is_as_small() -> None:
    loss = decaying(800, 1.5, 2.3)
    for factor in (1e-6, 1e-3):
        assert judged("gradient_vanishing", loss=factor * loss, grad_norm=factor * norms) == []
        gone = factor * norms * np.where(np.arange(800) < 500, 1.0, 1e-8)
        (event,) = judged("gradient_vanishing", loss=np.full(800, 2.3 * factor), grad_norm=gone)
        assert event.step == 509
        assert event.metrics["limit"] == pytest.approx(min(1.0, 2.3 * factor) * 1e-5)


def test_a_gradient_that_fades_while_the_loss_is_flat_is_found() -> None:
    faded = norms * np.where(np.arange(800) < 100, 1.0, 0.02)
    (event,) = judged("gradient_vanishing", loss=2.3 + noise(1, 800, 0.01), grad_norm=faded)
    assert 290 <= event.step <= 310
    assert judged("gradient_vanishing", loss=decaying(800), grad_norm=faded) == []


def test_three_high_norms_in_a_row_are_an_explosion_before_one_alone_would_be() -> None:
    rising = norms.copy()
    rising[600:606] = np.median(norms) * 6.5
    assert judged("gradient_explosion", grad_norm=at(norms, 600, 0.0) + np.where(np.arange(800) == 600, 6.5, 0.0)) == []
    (event,) = judged("gradient_explosion", grad_norm=rising)
    assert (event.step, event.severity) == (602, Severity.WARNING)
    assert "for 3 steps in a row" in event.message


def test_layers_are_left_to_the_judgements_of_layers() -> None:
    broken = {"grad_norm@head": at(norms, 600, 1e6), "loss": np.full(800, 2.0), "grad_norm": norms}
    broken["grad_norm@head"][700] = np.nan
    names = "nan_detected inf_detected loss_spike gradient_explosion gradient_vanishing"
    assert judged(names, **broken) == []
