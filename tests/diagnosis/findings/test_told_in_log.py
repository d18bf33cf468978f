"""Words of a log become findings only where they are its last ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.importers.open_log import read
from mlflow_stability.kinds.catalog import detectors_named
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis


def lines(first: int, last: int) -> str:
    return "".join(f"step {n} loss {2 + 4 / n:.4f}\n" for n in range(first, last + 1))


def diagnosed(path: Path, text: str, asked: str = "") -> Diagnosis:
    log = path / "train.log"
    log.write_text(text)
    (run,) = read(log)
    return diagnosis_of(run, detectors=detectors_named(asked.split()) if asked else None)


def serious(diagnosis: Diagnosis) -> list[tuple[str, Severity, int, int]]:
    return [
        (finding.kind, finding.severity, finding.start, finding.end)
        for finding in diagnosis.findings
        if finding.severity > Severity.INFO
    ]


def guard(first: int, last: int, norms: str) -> str:
    return "".join(f"nonfinite_guard:skip planned_step:{n} grad_norms:[{norms}]\n" for n in range(first, last + 1))


@pytest.mark.parametrize(("norms", "kind"), [("inf,inf", "inf_detected"), ("nan,nan", "nan_detected")])
def test_steps_skipped_for_numbers_up_to_the_end_break_the_run(tmp_path: Path, norms: str, kind: str) -> None:
    diagnosis = diagnosed(tmp_path, lines(1, 60) + guard(61, 70, norms))
    assert serious(diagnosis) == [(kind, Severity.CRITICAL, 61, 70)]
    assert diagnosis.outcome == "broken"
    assert "10 steps skipped from step 61 to the end of the run at step 70" in diagnosis.findings[0].message


@pytest.mark.parametrize("words", ["OVERFLOW! Skipping step", "skipping batch", "Gradient overflow.  Skipping step"])
def test_skipped_steps_without_a_reason_up_to_the_end_are_a_warning(tmp_path: Path, words: str) -> None:
    text = lines(1, 60) + "".join(f"{words}\nstep {n} loss 2.1\n" for n in range(61, 70))
    assert [(kind, severity) for kind, severity, _, _ in serious(diagnosed(tmp_path, text))] == [
        ("step_skipped", Severity.WARNING)
    ]


def test_single_skipped_steps_are_not_a_finding(tmp_path: Path) -> None:
    text = lines(1, 30) + guard(31, 31, "inf") + lines(32, 60) + guard(61, 62, "nan") + lines(63, 90)
    assert serious(diagnosed(tmp_path, text)) == []


def test_ten_skipped_steps_after_which_training_continued_are_not_a_finding(tmp_path: Path) -> None:
    assert serious(diagnosed(tmp_path, lines(1, 30) + guard(31, 40, "inf") + lines(41, 90))) == []


def test_a_scaler_that_was_still_searching_when_a_short_run_ended_is_not_a_finding(tmp_path: Path) -> None:
    text = "".join(
        f"Gradient overflow.  Skipping step, reducing to {2**n}\nstep {16 - n} loss {n / 5}\n" for n in range(15, 5, -1)
    )
    assert serious(diagnosed(tmp_path, text)) == []


def test_a_nan_loss_in_the_last_lines_of_a_log_breaks_the_run(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lines(1, 60) + "Loss is nan, stopping training\n")
    assert serious(diagnosis) == [("nan_detected", Severity.CRITICAL, 60, 60)]
    assert "Line 61 of the log" in diagnosis.findings[0].message


def test_a_crash_of_one_attempt_is_not_the_verdict_on_the_next_attempt(tmp_path: Path) -> None:
    text = lines(1, 60) + "Loss is nan, stopping training\nRuntimeError: no\n" + lines(1, 90)
    diagnosis = diagnosed(tmp_path, text)
    assert serious(diagnosis) == []
    assert {(finding.kind, finding.attempt, finding.start) for finding in diagnosis.findings} == {
        ("nan_detected", 0, 60),
        ("crashed", 0, 60),
    }
    assert diagnosis.outcome == "healthy"


def test_skipped_steps_are_not_reported_when_only_spikes_are_requested(tmp_path: Path) -> None:
    assert serious(diagnosed(tmp_path, lines(1, 60) + guard(61, 70, "nan"), "loss_spike")) == []
