"""Rules that look at how a run ended or went on: each sees its trouble, and nothing in the same run without it."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.kinds.gradients.gradient_explosion import GradientRiseRule
from mlflow_stability.kinds.loss.divergence_rules import FinalRiseRule, ResumeRule
from mlflow_stability.kinds.optimizer.loss_scaling import SkippedEndRule
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Metric

COUNT = 400


def findings_of(rule: Rule, *metrics: Metric) -> list[Finding]:
    return rule.find(run_curves(run_of(*metrics)))


def test_a_run_that_ends_high_above_all_before_is_found() -> None:
    losses = falling(COUNT)
    assert findings_of(FinalRiseRule(), metric_of("loss", losses)) == []
    losses[-5:] *= 8
    (episode,) = findings_of(FinalRiseRule(), metric_of("loss", losses))
    assert (episode.kind, episode.start, episode.recovered) == ("divergence", COUNT - 5, False)


@pytest.mark.parametrize(("end", "is_found"), [(1.9, False), (2.1, True)])
def test_the_last_points_are_high_from_twice_the_level_before_on(end: float, is_found: bool) -> None:
    losses = np.exp(np.random.default_rng(0).normal(0, 0.02, COUNT))
    losses[-5:] = end
    messages = [finding.message for finding in findings_of(FinalRiseRule(), metric_of("loss", losses))]
    assert len(messages) == is_found
    assert all(f"from step {COUNT - 5} on" in message and "(threshold 2 times)" in message for message in messages)


def test_the_last_points_of_a_noisy_loss_are_not_high_above_its_highest_alone() -> None:
    losses = np.exp(np.random.default_rng(0).normal(0, 0.3, COUNT))
    losses[-5:] = 1.3 * losses.max()
    assert findings_of(FinalRiseRule(), metric_of("loss", losses)) == []


def test_a_loss_that_is_lost_at_a_resume_is_found() -> None:
    before, after = falling(1000), falling(2000, seed=1)[900:]
    steps, attempts = np.r_[np.arange(1000), np.arange(900, 2000)], np.repeat([0, 1], [1000, 1100])
    assert findings_of(ResumeRule(), metric_of("loss", np.r_[before, after], steps=steps, attempts=attempts)) == []
    lost = metric_of("loss", np.r_[before, 2.5 * after], steps=steps, attempts=attempts)
    (episode,) = findings_of(ResumeRule(), lost)
    assert (episode.kind, episode.start, episode.attempt) == ("divergence", 900, 1)


@pytest.mark.parametrize(("count", "more", "is_found"), [(200, 8, True), (200, 7, False), (7, 200, False)])
def test_a_resume_is_judged_where_enough_values_are_on_both_sides(count: int, more: int, is_found: bool) -> None:
    losses, attempts = np.r_[falling(count), np.full(more, 5.0)], np.repeat([0, 1], [count, more])
    steps = np.r_[np.arange(count), count - 2 + np.arange(more)]
    assert bool(findings_of(ResumeRule(), metric_of("loss", losses, steps=steps, attempts=attempts))) is is_found


def test_a_gradient_norm_that_grows_without_end_is_found_where_the_loss_rose() -> None:
    losses, norms = falling(COUNT), np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    growing = norms * np.exp(np.maximum(0, np.arange(COUNT) - 150) * 0.03)
    assert findings_of(GradientRiseRule(), metric_of("loss", losses), metric_of("grad_norm", growing)) == []
    losses[300:] *= 1.5
    assert findings_of(GradientRiseRule(), metric_of("loss", losses), metric_of("grad_norm", norms)) == []
    (episode,) = findings_of(GradientRiseRule(), metric_of("loss", losses), metric_of("grad_norm", growing))
    assert episode.kind == "gradient_explosion"
    assert 150 <= episode.start < 200


def test_steps_that_are_skipped_to_the_last_are_found() -> None:
    skipped = np.zeros(60)
    skipped[20:] = 1
    assert findings_of(SkippedEndRule(), metric_of("skipped_steps", skipped)) == []
    skipped[-10:] += np.arange(1, 11)
    (episode,) = findings_of(SkippedEndRule(), metric_of("skipped_steps", skipped))
    assert (episode.kind, episode.start, episode.end) == ("step_skipped", 50, 59)
    assert "all of the last 10 steps skipped" in episode.message
