from __future__ import annotations

import json
from dataclasses import replace

from findings import changed
from hypothesis import given, settings
from reports.hostile import hostile_reports
from reports.samples import BAD, GOOD, broken, spike

from mlflow_stability.reports.brief import MAX_BYTES, brief, render
from mlflow_stability.reports.report import Report
from mlflow_stability.vocabulary.result import NotJudged, read_remedies


def test_it_says_what_happened_why_and_what_to_do() -> None:
    (run,) = json.loads(render(BAD))["runs"]
    assert run["verdict"] == "Broken: train_loss became NaN at step 960 and stayed so to the end."
    assert (run["cause"]["name"], run["cause"]["certainty"]) == ("overflow", "likely")
    assert run["finding_counts"] == {"CRITICAL": 1, "WARNING": 1, "INFO": 1}
    assert [(finding["issue_type"], finding["step"]) for finding in run["findings"]] == [
        ("loss_spike", 300),
        ("nan_detected", 960),
    ]
    assert run["curves"][0]["metric"] == "train_loss"


def test_a_healthy_run_has_no_findings() -> None:
    (run,) = json.loads(render(GOOD))["runs"]
    assert (run["outcome"], run["findings"], run["more_findings"], run["cause"]) == ("healthy", [], 0, None)


def test_of_many_findings_the_worst_are_listed_and_the_others_are_counted() -> None:
    many = tuple(changed(spike(), start=step, message="far above its baseline " * 50) for step in range(500))
    result = brief(replace(broken(), findings=(*many, *broken().findings)))
    assert len(result["findings"]) + result["more_findings"] == 502
    assert "nan_detected" in {finding["issue_type"] for finding in result["findings"]}


@settings(max_examples=60)
@given(hostile_reports())
def test_it_is_small_whatever_a_run_is_called(report: Report) -> None:
    document = json.loads(render(report))
    assert len(document["runs"]) == len(report.diagnoses)
    for run in document["runs"]:
        assert len(json.dumps(run, indent=4)) <= MAX_BYTES


def test_a_run_whose_every_text_is_long_is_small_too() -> None:
    long = "梯度" * 5000
    cause = replace(broken().cause, statement=long, evidence=(long,) * 50, ruled_out=(long,) * 50)
    episodes = tuple(changed(spike(), start=step, message=long, place=long) for step in range(50))
    run = replace(
        broken(),
        name=long,
        source=long,
        verdict=long,
        cause=cause,
        findings=episodes,
        remedies=read_remedies([long] * 50),
        cannot_tell=(NotJudged(long),) * 50,
    )
    assert len(json.dumps(brief(run), indent=4)) <= MAX_BYTES
