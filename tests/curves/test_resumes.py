from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import RunHistory


def resumed(factor: float, *, rate: float = 1.0, overlap: int = 100) -> RunHistory:
    """A training that was resumed at step 1000, or somewhat before, at another level and learning rate."""
    course, again = falling(2000), falling(2000, seed=1)
    at = 1000 - overlap
    losses = np.r_[course[:1000], factor * again[at:]]
    steps, attempts = np.r_[np.arange(1000), np.arange(at, 2000)], np.repeat([0, 1], [1000, 2000 - at])
    rates = np.where(attempts == 0, 1e-4, 1e-4 * rate)
    return run_of(
        metric_of("loss", losses, steps=steps, attempts=attempts),
        metric_of("lr", rates, steps=steps, attempts=attempts),
    )


def test_a_loss_that_stays_higher_after_a_resume_has_diverged_and_the_rate_is_why() -> None:
    diagnosis = diagnosis_of(resumed(2.5, rate=10))
    assert (diagnosis.outcome, diagnosis.severity) == ("diverged", Severity.CRITICAL)
    assert "after the resume at step 900, 2.5" in diagnosis.verdict
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_jump"
    assert "changed at the resume at step 900: 0.0001 before, 0.001 after" in diagnosis.cause.statement


def test_an_unchanged_learning_rate_is_not_named_as_the_cause() -> None:
    cause = diagnosis_of(resumed(2.5)).cause
    assert cause is None or "learning_rate" not in cause.name


def test_a_resume_at_the_same_level_is_healthy_and_described_up_to_its_last_level() -> None:
    history = resumed(1.0)
    diagnosis = diagnosis_of(history)
    last = float(history.metrics[0].series.values[-1])
    assert diagnosis.outcome == "healthy"
    assert f"to {diagnosis.curves[0].last_level:.4g} in 2,000 steps" in diagnosis.verdict
    assert (diagnosis.curves[0].last_step, diagnosis.curves[0].last) == (1999, last)
    assert diagnosis.sketches[0].steps[-1] > 1900
    assert any("the verdict is that of the last start" in note for note in diagnosis.notes)


def test_a_divergence_before_a_resume_is_not_the_outcome_of_the_run() -> None:
    broken, again = falling(1000), falling(2000, seed=1)[500:]
    broken[700:] *= 4
    steps, attempts = np.r_[np.arange(1000), np.arange(500, 2000)], np.repeat([0, 1], [1000, 1500])
    diagnosis = diagnosis_of(run_of(metric_of("loss", np.r_[broken, again], steps=steps, attempts=attempts)))
    assert diagnosis.outcome == "unstable"
    loud = [finding for finding in diagnosis.findings if finding.severity > Severity.INFO]
    assert [(finding.kind, finding.attempt) for finding in loud] == [("divergence", 0)]


@pytest.mark.parametrize("worst", [0, 1])
def test_the_worst_of_independent_runs_in_one_file_decides_the_outcome_with_a_note(worst: int) -> None:
    runs = [falling(500), falling(500, seed=1)]
    runs[worst][300:] *= 4
    steps, attempts = np.tile(np.arange(500), 2), np.repeat([0, 1], 500)
    diagnosis = diagnosis_of(run_of(metric_of("loss", np.concatenate(runs), steps=steps, attempts=attempts)))
    assert diagnosis.outcome == "diverged"
    assert any("holds 2 starts of a training" in note for note in diagnosis.notes)
