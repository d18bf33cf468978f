from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

from diagnosis.histories import falling, run_named

import mlflow_stability
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import FORMATS, render
from mlflow_stability.vocabulary.result import Diagnosis

PACKAGE = Path(mlflow_stability.__file__).parent


def spiked(unit: str) -> Diagnosis:
    losses = falling(60)
    losses[40] *= 9
    return diagnosis_of(replace(run_named(loss=losses), step_unit=unit))


def test_a_log_of_epochs_has_findings_at_epochs() -> None:
    result = spiked("epoch")
    (episode,) = (finding for finding in result.findings if finding.kind == "loss_spike")
    assert "at epoch 40" in episode.message
    assert "epoch 40" in result.verdict
    assert "step 40" not in repr(result)


def test_a_log_of_steps_is_reported_in_steps() -> None:
    assert "at step 40" in spiked("step").findings[0].message
    assert "epoch" not in spiked("step").verdict


def test_no_report_mixes_steps_and_epochs() -> None:
    for form in FORMATS:
        if form != "rich":
            text = render(Report((spiked("epoch"),)), form)
            assert "epoch 40" in text
            assert "step 40" not in text
            assert "steps 0" not in text


def texts_before_numbers(file: Path) -> list[str]:
    """The constant parts of texts in a file that end in "step " before a number that is filled in."""
    result = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            text = "".join(map(str, parts))
            result += re.findall(r".{0,20}\bsteps? \0", text, re.IGNORECASE)
    return result


def test_causes_and_verdicts_take_the_word_for_a_step_from_the_run() -> None:
    files = [file for room in ("causes", "verdict") for file in (PACKAGE / "diagnosis" / room).glob("*.py")]
    assert len(files) > 10
    assert {file.name: texts for file in files if (texts := texts_before_numbers(file))} == {}
