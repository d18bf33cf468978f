from __future__ import annotations

import csv
import io
from dataclasses import replace

from hypothesis import given, settings
from reports.hostile import hostile_reports
from reports.samples import BAD, GOOD, SEVERAL

from mlflow_stability.reports.formats.csv import COLUMNS
from mlflow_stability.reports.formats.csv import run as render
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.run_phrases import NO_TROUBLE


def rows_of(report: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render(report))))


def test_there_is_a_row_for_each_issue_and_for_each_run_without_any() -> None:
    assert [(row["issue_type"], row["severity"], row["step"]) for row in rows_of(SEVERAL)] == [
        ("loss_spike", "WARNING", "300"),
        ("oscillation", "INFO", "420"),
        ("nan_detected", "CRITICAL", "960"),
        ("", "", ""),  # the healthy one
    ]


def test_a_healthy_run_has_a_row_with_its_verdict_and_no_issue() -> None:
    (row,) = rows_of(GOOD)
    assert (row["outcome"], row["issue_type"], row["severity"], row["step"]) == ("healthy", "", "", "")
    assert row["verdict"].startswith("Healthy: ")


def test_a_run_whose_findings_were_all_filtered_out_has_no_row() -> None:
    (run,) = BAD.diagnoses
    assert rows_of(Report((replace(run, findings=()),))) == []


def test_evidence_and_remedies_share_a_cell_each() -> None:
    row = rows_of(BAD)[0]
    assert row["metrics"] == "loss=5.71; z=31.2"
    assert row["remedies"] == "Lower the learning rate 2-5 times.; Look at the batch of this step."
    assert (row["recovered"], rows_of(BAD)[1]["recovered"]) == ("true", "")


def test_every_issue_has_the_verdict_of_its_run_and_the_cause_of_that() -> None:
    row = rows_of(BAD)[0]
    assert row["verdict"] == "Broken: train_loss became NaN at step 960 and stayed so to the end."
    assert (row["cause"], row["verdict_cause"]) == ("bad_batch", "overflow")


@settings(max_examples=50)
@given(hostile_reports())
def test_no_cell_is_a_formula_and_no_row_is_lost(report: Report) -> None:
    text = render(report)
    well = sum(not diagnose.findings and diagnose.outcome in NO_TROUBLE for diagnose in report.diagnoses)
    assert len(text.splitlines()) == 1 + sum(1 for _ in report.issues()) + well
    for row in csv.reader(io.StringIO(text)):
        assert len(row) == len(COLUMNS)
        for cell in row:
            assert not cell.lstrip().startswith(("=", "+", "-", "@")), cell
            assert cell.isprintable()
