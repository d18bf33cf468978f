from __future__ import annotations

from pathlib import Path

import pytest
from analysis.logs import falling
from analysis.stored_runs import store_run

from mlflow_stability.cli.main import run


@pytest.fixture
def runs(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    return [store_run(sqlite_uri, falling(), name=name) for name in ("first", "twin", "twin", "newest")]


@pytest.mark.parametrize("named", [["first"], ["{first:.10}"], ["first", "--last"]])
def test_a_run_is_diagnosed_by_name_beginning_and_as_the_last(
    named: list[str], runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", *(item.format(first=runs[0]) for item in named), "--output-format", "markdown"]) == 0
    printed = capsys.readouterr().out
    assert runs[0] in printed
    assert (runs[3] in printed) is ("--last" in named)


def test_several_runs_of_one_name_are_listed(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "twin"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("mlflow-stability: 'twin' may mean 2 runs. Give more of the id of one:\n")
    assert {line.split()[0] for line in errors.splitlines()[1:]} == {row[:12] for row in runs[1:3]}


def test_the_last_runs_are_compared(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--last", "2", "--output-format", "csv", "--no-cache"]) == 0
    printed = capsys.readouterr().out
    assert [value in printed for value in runs] == [False, False, True, True]


def test_a_comparison_is_logged_to_a_run_by_its_name(runs: list[str], tmp_path: Path) -> None:
    assert run(["compare", "first", "newest", "--baseline", "first", "--log-to-run", "newest", "--no-cache"]) == 0
    assert [path.parts[-4] for path in tmp_path.rglob("comparison.html")] == [runs[3]]


@pytest.mark.parametrize("command", [["checklist", "--run", "newest"], ["checklist", "--last"]])
def test_a_checklist_is_filled_in_for_a_run_by_name(
    command: list[str], runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 0
    assert "What to check in newest" in capsys.readouterr().out


def test_checkpoints_take_one_run(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoints", "first"]) == 2
    assert f"Run {runs[0]} has no checkpoints" in capsys.readouterr().err
    assert run(["checkpoints", "--last"]) == 2
    assert f"Run {runs[3]} has no checkpoints" in capsys.readouterr().err
    for typed in ([], ["first", "--last"]):
        assert run(["checkpoints", *typed]) == 2
        assert "Give a run id, its beginning or a run's name, or --last." in capsys.readouterr().err


def test_nothing_typed_says_what_could_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose"]) == 2
    assert "Give run ids, run names or paths of logs, or --last." in capsys.readouterr().err
    assert run(["compare"]) == 2
    assert "--last N" in capsys.readouterr().err
