from __future__ import annotations

from dataclasses import replace

from diagnosis.histories import falling, run_named

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import FORMATS, render
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis


def spiked(unit: str) -> Diagnosis:
    losses = falling(60)
    losses[40] *= 9
    return diagnosis_of(replace(run_named(loss=losses), step_unit=unit))


def test_a_log_of_epochs_has_findings_at_epochs() -> None:
    found = spiked("epoch")
    (episode,) = (each for each in found.episodes if each.kind == "loss_spike")
    assert "at epoch 40" in episode.message
    assert "epoch 40" in found.verdict
    assert "step 40" not in repr(found)


def test_a_log_of_steps_is_told_in_steps() -> None:
    assert "at step 40" in spiked("step").episodes[0].message
    assert "epoch" not in spiked("step").verdict


def test_no_report_mixes_the_words() -> None:
    for form in FORMATS:
        if form != "rich":
            said = render(Report((spiked("epoch"),)), form)
            assert "epoch 40" in said
            assert "step 40" not in said
            assert "steps 0" not in said
