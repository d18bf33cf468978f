from __future__ import annotations

from diagnosis.histories import metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of


def test_a_run_of_one_step_has_a_loss_and_says_which() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", [2.3], steps=[1])))
    assert diagnosis.verdict == "Cannot tell: loss has a single point, 2.3 at step 1."
    assert "no training loss was logged" not in " ".join(map(str, diagnosis.cannot_tell))


def test_a_run_that_was_interrupted_after_one_step_says_so_too() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", [2.3], steps=[1]), outcome="interrupted"))
    assert "loss has a single point, 2.3 at step 1" in diagnosis.verdict


def test_a_run_without_a_loss_still_says_that_there_is_none() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("learning_rate", [0.1, 0.1], steps=[1, 2])))
    assert "single point" not in diagnosis.verdict
    assert any("no training loss was logged" in str(value) for value in diagnosis.cannot_tell)
