from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from analysis.logs import diverging, ending_in_nan, falling, write_log

from mlflow_stability.analysis.diagnose import diagnose
from mlflow_stability.analysis.filter_kinds import filter_kinds
from mlflow_stability.cli.main import run
from mlflow_stability.vocabulary.result import Severity


def test_without_kinds_the_diagnosis_is_unchanged() -> None:
    whole = diagnose(write_log(Path("a.jsonl"), diverging()))
    assert filter_kinds(whole, ()) == whole


def test_nothing_that_depends_on_a_hidden_kind_is_shown() -> None:
    whole = diagnose(write_log(Path("a.jsonl"), ending_in_nan()))
    assert whole.outcome == "broken"
    narrowed = filter_kinds(whole, ("plateau",))
    assert (narrowed.findings, narrowed.cause, narrowed.remedies, narrowed.outcome) == ((), None, (), "not_found")
    assert narrowed.verdict == "Not found: no plateau in 600 steps. Other findings: NaN."


def test_the_kept_findings_have_the_verdict_that_they_would_have_alone() -> None:
    losses = diverging()
    losses[100] = float("nan")
    whole = diagnose(write_log(Path("a.jsonl"), losses))
    assert {"divergence", "nan_detected"} <= {each.kind for each in whole.findings}
    narrowed = filter_kinds(whole, ("divergence",))
    assert narrowed.outcome == "diverged"
    assert "nan_detected" not in narrowed.verdict
    assert narrowed.cause is None  # the first trouble was the other


def test_a_run_without_trouble_stays_healthy() -> None:
    assert filter_kinds(diagnose(write_log(Path("a.jsonl"), falling())), ("divergence",)).outcome == "healthy"


def test_the_verdict_mentions_a_requested_kind_that_was_found_only_at_info_level() -> None:
    losses = diverging()
    whole = diagnose(write_log(Path("a.jsonl"), losses))
    mild = replace(whole.findings[0], kind="rollback", severity=Severity.INFO)
    narrowed = filter_kinds(replace(whole, findings=(*whole.findings, mild)), ("rollback",))
    assert narrowed.findings == (mild,)
    assert narrowed.verdict.startswith("Not found: no warning in 600 steps, only a rollback (INFO). Other findings: ")


def test_checks_that_could_not_be_made_are_listed_for_the_requested_kinds_only() -> None:
    whole = diagnose(write_log(Path("a.jsonl"), falling()))
    assert {str(each) for each in whole.cannot_tell} > {"Gradients: no gradient norm was logged."}
    narrowed = filter_kinds(whole, ("gradient_explosion",))
    assert [str(each) for each in narrowed.cannot_tell] == ["Gradients: no gradient norm was logged."]
    assert filter_kinds(whole, ("loss_spike",)).cannot_tell == ()


def test_a_requested_kind_is_shown_at_any_severity(capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(Path("a.jsonl"), falling())
    log.write_text(f"{log.read_text()}Loss exploded\n")
    assert run(["diagnose", str(log)]) == 0
    assert "Loss exploded" not in capsys.readouterr().out
    assert run(["diagnose", str(log), "--issue-type", "divergence"]) == 0
    assert "Loss exploded" in capsys.readouterr().out
