from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of
from numpy.typing import NDArray

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.progress.no_progress import StandstillFacts, StandstillRule
from mlflow_stability.vocabulary.result import Finding, Severity


def falling(steps: int, stands_from: int, last: float = 2.2) -> NDArray[np.float64]:
    """A loss that falls from 6 and is constant from some step on."""
    at = np.minimum(np.arange(steps), stands_from)
    level = last + (6 - last) * np.exp(-at / (0.4 * stands_from))
    return level + np.random.default_rng(0).normal(0, 0.02 * last, steps)


def standing(*metrics: tuple[str, NDArray[np.float64]]) -> list[Finding]:
    run = run_of(*(metric_of(name, values.tolist()) for name, values in metrics))
    return [finding for finding in diagnosis_of(run).findings if isinstance(finding.facts, StandstillFacts)]


@pytest.mark.parametrize(
    ("steps", "stands_from", "last", "severity"),
    [
        (20_000, 6000, 2.5, Severity.WARNING),
        (20_000, 6000, 1.0, Severity.INFO),
        (20_000, 11_000, 2.5, Severity.INFO),
        (5000, 1500, 2.5, Severity.INFO),
    ],
)
def test_the_severity_depends_on_the_length_of_the_standstill_and_the_loss_that_is_left(
    steps: int, stands_from: int, last: float, severity: Severity
) -> None:
    (finding,) = standing(("loss", falling(steps, stands_from, last)))
    assert finding.severity is severity
    assert finding.start == pytest.approx(stands_from, rel=0.15)
    assert finding.end == steps - 1
    assert str(finding.remedies[0]) == "Raise the learning rate, or lower it by a factor of 10."


def test_a_loss_that_falls_to_the_end_is_no_standstill() -> None:
    assert standing(("loss", 6.0 * (1 + np.arange(20_000)) ** -0.1 + falling(20_000, 6000, 0.01))) == []


def test_the_end_of_a_schedule_does_not_count() -> None:
    decayed = np.where(np.arange(20_000) < 6000, 1e-3, 1e-5)
    losses = ("loss", falling(20_000, 6000, 2.5))
    assert standing(losses, ("learning_rate", decayed)) == []
    assert standing(losses, ("learning_rate", np.full(20_000, 1e-3)))


@pytest.mark.slow
def test_a_flat_validation_loss_while_the_training_loss_falls_is_information() -> None:
    losses = 1.0 + 5.0 * np.exp(-np.arange(20_000) / 9000)
    (finding,) = standing(("loss", losses), ("val_loss", falling(20_000, 8000)))
    assert (finding.severity, finding.metric) == (Severity.INFO, "val_loss")
    assert "and loss fell on" in finding.message


def test_stricter_thresholds_find_less() -> None:
    curves = run_curves(run_of(metric_of("loss", falling(20_000, 6000, 2.5).tolist())))
    assert [finding.severity for finding in StandstillRule().find(curves)] == [Severity.WARNING]
    for milder in (StandstillRule(long_share=0.9), StandstillRule(long_steps=15_000), StandstillRule(left=0.6)):
        assert [finding.severity for finding in milder.find(curves)] == [Severity.INFO]
    for stricter in (StandstillRule(share=0.9), StandstillRule(fell=0.9), StandstillRule(max_error=1e-6)):
        assert stricter.find(curves) == []


def test_its_cause_is_not_a_number_of_classes_that_happens_to_fit() -> None:
    run = run_of(metric_of("loss", falling(20_000, 6000, float(np.log(13))).tolist()))
    diagnosis = diagnosis_of(run)
    assert diagnosis.outcome == "stuck"
    assert diagnosis.cause is None or diagnosis.cause.name != "guessing"
