from __future__ import annotations

from pathlib import Path

import pytest
from analysis.logs import ending_in_nan, falling, write_log

from mlflow_stability.cli.main import run
from mlflow_stability.diagnosis.checklist.checklist import checklist_of
from mlflow_stability.kinds.catalog import KINDS


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_list_of_questions_with_a_way_to_answer_each(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checklist", kind]) == 0
    text = capsys.readouterr().out
    for number, item in enumerate(checklist_of(kind).items, start=1):
        assert f" {number}. " in text
        assert item.question in words(text)
        assert f"manual check: {item.how}" in words(text)
    assert max(map(len, text.splitlines())) <= 80


def test_without_kind_and_run_the_checks_fit_any_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checklist"]) == 0
    assert "What to check: a general list" in capsys.readouterr().out


def test_a_run_fills_in_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(Path("nan.jsonl"), ending_in_nan())
    assert run(["checklist", "nan_detected", "--run", "nan.jsonl"]) == 0
    result = words(capsys.readouterr().out)
    assert "1. bad Where did the first non-finite value appear?" in result
    assert "step 400" in result
    assert "unknown Are the inputs of that step finite" in result


def test_a_run_alone_gives_the_checks_for_its_worst_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(Path("nan.jsonl"), ending_in_nan())
    assert run(["checklist", "--run", "nan.jsonl"]) == 0
    assert "Where did the first non-finite value appear?" in words(capsys.readouterr().out)


@pytest.mark.parametrize("typed", [["--run", "gone.csv"], ["--run", "logs"], ["nonsense"]])
def test_an_invalid_call_ends_with_code_2_and_an_error_without_a_traceback(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        write_log(Path("logs", f"{name}.jsonl"), falling())
    assert run(["checklist", *typed]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert "mlflow-stability: " in printed.err or "Error: " in printed.err


def test_the_output_says_when_a_kind_has_no_checklist_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checklist", "dead_units"]) == 0
    assert "dead_units has no checklist of its own" in words(capsys.readouterr().out)


def test_the_checklist_ends_in_a_decision(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(Path("nan.jsonl"), ending_in_nan())
    assert run(["checklist", "nan_detected"]) == 0
    assert "Decision - If one batch is the cause: Restart from a checkpoint" in words(capsys.readouterr().out)
    assert run(["checklist", "--run", "nan.jsonl", "--sensitivity", "low"]) == 0
    assert "Decision - " in words(capsys.readouterr().out)


def test_a_run_or_a_path_may_be_given_instead_of_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(Path("log.jsonl"), falling())
    assert run(["checklist", "log.jsonl"]) == 0
    assert "What to check in log.jsonl" in capsys.readouterr().out
    assert run(["checklist", "0123456789abcdef0123456789abcdef"]) == 2
    assert "No such finding" not in capsys.readouterr().err
