from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator
from reports.hostile import hostile_reports
from reports.run.facts_schema import facts_schema, with_facts
from reports.samples import ALL, BAD, GOOD, MIXED, NOTHING, SEVERAL, nan, run_of_a_store

from mlflow_stability.diagnosis.verdict import ENDED, KINDS_THAT_DECIDE, RECOVERED
from mlflow_stability.kinds.loss.loss_spike import SpikeFacts
from mlflow_stability.reports.formats.json import run as render
from mlflow_stability.reports.formats.json import schema
from mlflow_stability.reports.report import Report


def refuse(constant: str) -> None:
    raise AssertionError(f"bare {constant}")


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema("diagnosis"))


@pytest.mark.slow
def test_the_schema_names_all_facts_with_their_types_and_meanings() -> None:
    assert schema("diagnosis") == with_facts(schema("diagnosis")), "run: python tests/reports/run/facts_schema.py"
    spike = schema("diagnosis")["$defs"]["SpikeFacts"]["properties"]
    assert spike["kind"] == {"const": "loss_spike"}
    assert "in σ of its noise" in spike["sigmas"]["description"]
    for definition in facts_schema().values():
        undocumented = [name for name, text in definition.get("properties", {}).items() if "description" not in text]
        assert set(undocumented) <= {"kind"}, definition


def test_facts_are_an_object_next_to_the_message() -> None:
    facts = SpikeFacts(7.5, 0.5, 18.8, 8.0)
    (diagnosis, *_) = BAD.diagnoses
    changed = replace(diagnosis, findings=(replace(diagnosis.findings[0], facts=facts), *diagnosis.findings[1:]))
    document = json.loads(render(replace(BAD, diagnoses=(changed,))))
    Draft202012Validator(schema("diagnosis")).validate(document)
    assert document["runs"][0]["findings"][0]["facts"] == facts.as_json()
    document["runs"][0]["findings"][0]["facts"]["sigmas"] = "many"
    assert not Draft202012Validator(schema("diagnosis")).is_valid(document)


@pytest.mark.parametrize("report", ALL)
def test_what_is_written_follows_the_schema(report: Report) -> None:
    Draft202012Validator(schema("diagnosis")).validate(json.loads(render(report), parse_constant=refuse))


@pytest.mark.slow
@settings(max_examples=50)
@given(hostile_reports())
def test_whatever_the_names_are_it_is_ascii_follows_the_schema_and_keeps_the_source(report: Report) -> None:
    text = render(report)
    assert text.isascii()
    document = json.loads(text, parse_constant=refuse)
    Draft202012Validator(schema("diagnosis")).validate(document)
    assert [run["source"] for run in document["runs"]] == [diagnose.source for diagnose in report.diagnoses]


def test_the_schema_refuses_what_is_not_written() -> None:
    document = json.loads(render(BAD))
    document["issues"][0].pop("source")
    assert not Draft202012Validator(schema("diagnosis")).is_valid(document)
    document = json.loads(render(BAD))
    document["summary"].pop("total_files")
    assert not Draft202012Validator(schema("diagnosis")).is_valid(document)


def test_the_schema_knows_every_outcome() -> None:
    outcomes = {*KINDS_THAT_DECIDE, *ENDED, RECOVERED, "healthy", "unstable", "cannot_tell", "not_found"}
    for outcome in outcomes:
        (whole, *_) = ALL[0].diagnoses
        Draft202012Validator(schema("diagnosis")).validate(
            json.loads(render(Report((replace(whole, outcome=outcome),))))
        )


def test_the_summary_counts_what_is_listed() -> None:
    document = json.loads(render(SEVERAL))
    assert document["summary"] == {
        "total_files": 2,
        "total_issues": 3,
        "critical_count": 1,
        "warning_count": 1,
        "info_count": 1,
    }
    assert len(document["issues"]) == 3
    assert document["errors"] == [{"source": "gone.csv", "message": "There is no gone.csv."}]


def test_runs_and_files_are_counted_apart() -> None:
    summary = json.loads(render(MIXED))["summary"]
    assert (summary["total_files"], summary["total_runs"]) == (1, 1)
    assert "total_runs" not in json.loads(render(GOOD))["summary"]
    assert json.loads(render(NOTHING))["summary"]["total_runs"] == 0


def test_a_run_of_ours_that_lies_in_a_folder_is_a_file() -> None:
    copied = replace(run_of_a_store(), source=f"mlruns/0/{'0' * 32}")
    summary = json.loads(render(Report((copied,))))["summary"]
    assert summary["total_files"] == 1
    assert "total_runs" not in summary


def test_two_runs_in_one_file_are_one_file() -> None:
    assert json.loads(render(Report(GOOD.diagnoses * 2)))["summary"]["total_files"] == 1


def test_numbers_that_json_does_not_know_are_strings_that_float_reads() -> None:
    metrics = json.loads(render(BAD))["issues"][2]["metrics"]
    assert metrics == {"loss": "nan", "before": "inf", "after": "-inf"}
    assert float(metrics["after"]) == float("-inf")


def test_unknown_values_are_null() -> None:
    (run,) = json.loads(render(GOOD))["runs"]
    assert run["cause"] is None
    assert run["curves"][0]["spike_score"] is None


def test_the_same_report_gives_the_same_bytes() -> None:
    assert render(SEVERAL) == render(replace(SEVERAL))


def test_an_issue_says_everything_about_its_episode() -> None:
    issue = json.loads(render(BAD))["issues"][2]
    assert issue["source"] == "logs/bad.jsonl"
    assert issue["severity"] == "CRITICAL"
    episode = nan()
    assert (issue["step"], issue["peak_step"], issue["end_step"]) == (episode.start, episode.peak, episode.end)
    assert (issue["place"], issue["metric"], issue["attempt"]) == ("decoder", "train_loss", 1)
    assert (issue["recovered"], issue["events"], issue["experimental"]) == (False, 2, False)
