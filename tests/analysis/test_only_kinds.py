from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.logs import diverging, ending_in_nan, falling, write_log

from mlflow_stability.analysis.diagnose import diagnose
from mlflow_stability.analysis.only_kinds import only_kinds
from mlflow_stability.vocabulary.result.severity import Severity


def test_without_kinds_everything_stands() -> None:
    whole = diagnose(write_log(Path("a.jsonl"), diverging()))
    assert only_kinds(whole, ()) == whole


def test_nothing_that_rests_on_a_hidden_kind_is_shown() -> None:
    whole = diagnose(write_log(Path("a.jsonl"), ending_in_nan()))
    assert whole.outcome == "broken"
    narrowed = only_kinds(whole, ("plateau",))
    assert (narrowed.findings, narrowed.cause, narrowed.remedies, narrowed.outcome) == ((), None, (), "not_found")
    assert narrowed.verdict == "Not found: no plateau in 600 steps. Other findings: NaN."


def test_what_is_kept_has_the_verdict_that_it_would_have_alone() -> None:
    losses = diverging()
    losses[100] = float("nan")
    whole = diagnose(write_log(Path("a.jsonl"), losses))
    assert {"divergence", "nan_detected"} <= {each.kind for each in whole.findings}
    narrowed = only_kinds(whole, ("divergence",))
    assert narrowed.outcome == "diverged"
    assert "nan_detected" not in narrowed.verdict
    assert narrowed.cause is None  # the first trouble was the other


def test_a_run_without_trouble_stays_healthy() -> None:
    assert only_kinds(diagnose(write_log(Path("a.jsonl"), falling())), ("divergence",)).outcome == "healthy"


def test_what_is_found_at_info_alone_is_not_said_to_be_missing() -> None:
    losses = diverging()
    whole = diagnose(write_log(Path("a.jsonl"), losses))
    mild = replace(whole.findings[0], kind="rollback", severity=Severity.INFO)
    narrowed = only_kinds(replace(whole, findings=(*whole.findings, mild)), ("rollback",))
    assert narrowed.findings == (mild,)
    assert narrowed.verdict.startswith("Not found: no warning in 600 steps, only a rollback (INFO). Other findings: ")
