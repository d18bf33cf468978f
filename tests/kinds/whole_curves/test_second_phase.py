"""The loss under another optimizer that took over for good is compared with its own start where that is far higher."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.curves.curves import curves_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

SECOND = 300


def rate(place: str, first: int, last: int) -> Metric:
    meaning = Meaning("learning_rate", place, is_known=True)
    steps = range(first, last)
    return metric_of(
        f"learning_rate@{place}" if place else "learning_rate", [1e-3] * len(steps), meaning=meaning, steps=steps
    )


def run_with(second: np.ndarray, *, overlap: int = 0, optimizers: int = 2) -> RunHistory:
    losses = np.r_[falling(SECOND, first=2.3, last=0.02), second]
    rates = [rate("", 0, len(losses) if optimizers == 1 else SECOND + overlap)]
    rates += [rate("optimizer_1", SECOND, len(losses))] if optimizers == 2 else []
    return run_of(metric_of("loss", losses), *rates)


def test_a_second_objective_is_no_divergence() -> None:
    second = falling(240, first=0.8, last=0.4)
    assert diagnosis_of(run_with(second)).outcome == "healthy"
    assert diagnosis_of(run_with(second, optimizers=1)).outcome == "diverged"
    assert diagnosis_of(run_with(second, overlap=50)).outcome == "diverged"


def test_a_second_phase_that_diverges_is_found() -> None:
    diagnosis = diagnosis_of(run_with(np.r_[falling(150, first=0.8, last=0.4), np.full(90, 3.0)]))
    assert diagnosis.outcome == "diverged"


@pytest.mark.parametrize("normal", [1, 5])
def test_a_second_optimizer_that_makes_the_loss_rise_has_made_it_diverge(normal: int) -> None:
    second = np.r_[np.full(normal, 0.02), np.full(240 - normal, 0.8)]
    assert diagnosis_of(run_with(second)).outcome == "diverged"


def test_the_last_phase_begins_with_the_loss_that_is_far_above_those_before() -> None:
    (curve,) = curves_of(run_with(falling(240, first=0.8, last=0.4)), "loss")
    assert curve.phases == (SECOND,)
    assert curve.last_phase.steps.tolist() == list(range(SECOND, SECOND + 240))
    (curve,) = curves_of(run_with(np.full(240, 0.02)), "loss")
    assert curve.last_phase is curve


def test_the_rise_of_a_range_test_is_no_divergence() -> None:
    ramp = 1e-6 * 10 ** np.linspace(0, 7, 150)
    rise = np.r_[falling(130, first=0.75, last=0.2), np.linspace(0.3, 8.0, 20)]
    training, meaning = falling(300, first=0.75, last=0.4), Meaning("learning_rate", "", is_known=True)
    named = metric_of("learning_rate", np.r_[ramp, np.full(300, 0.05)], meaning=meaning)
    assert diagnosis_of(run_of(metric_of("loss", np.r_[rise, training]), named)).outcome == "healthy"
    constant = metric_of("learning_rate", np.full(450, 0.05), meaning=meaning)
    assert diagnosis_of(run_of(metric_of("loss", np.r_[rise, training]), constant)).outcome != "healthy"
    large = at_step(140, "gradient_explosion", Severity.WARNING, "gradient norm 5.27.")
    seen = diagnosis_of(run_of(metric_of("loss", np.r_[rise, training]), named, events=[large]))
    assert [(finding.kind, finding.severity) for finding in seen.findings] == [("gradient_explosion", Severity.INFO)]
    alone = metric_of("learning_rate", ramp, meaning=meaning)
    findings = diagnosis_of(run_of(metric_of("loss", rise), alone)).findings
    assert [finding.kind for finding in findings if finding.severity >= Severity.WARNING] == []


def test_a_loss_that_fell_in_the_one_step_of_the_optimizer_before_is_no_plateau() -> None:
    losses = np.r_[0.49, np.linspace(0.0886, 0.0874, 100)]
    second = [rate("", 0, 1), rate("optimizer_1", 1, 101)]
    assert diagnosis_of(run_of(metric_of("loss", losses), *second)).findings == ()
    assert diagnosis_of(run_of(metric_of("loss", losses), rate("", 0, 101))).outcome == "stuck"
