from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_stability.cli.main import run

LOG = "".join(f"step {n} loss {9 / n:.3f}\n" for n in range(1, 9))
TABLE = "epoch,loss\n0,3\n1,2\n2,nan\n"


def test_each_imported_run_prints_a_line_with_its_id(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "table").write_text(TABLE)
    assert run(["import", "train.log", "table", "--experiment", "logs", "--tracking-uri", sqlite_uri]) == 0
    printed = capsys.readouterr()
    first, second = printed.out.split()
    assert printed.err == ""
    client = MlflowClient(sqlite_uri)
    assert [len(client.get_metric_history(run_id, "loss")) for run_id in (first, second)] == [8, 3]
    assert client.get_run(first).info.run_name == "train.log"


def test_importing_again_gives_the_same_runs(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(LOG)
    for _ in range(2):
        assert run(["import", ".", "--experiment", "logs", "--tracking-uri", sqlite_uri]) == 0
    first, again = capsys.readouterr().out.split()
    assert first == again


def test_unreadable_logs_are_reported_and_the_others_are_imported(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "empty.log").write_text("")
    given = ["import", "gone.log", "train.log", "empty.log", "--experiment", "logs", "--tracking-uri", sqlite_uri]
    assert run(given) == 2
    printed = capsys.readouterr()
    assert len(printed.out.split()) == 1
    assert "No such file: gone.log" in printed.err
    assert "empty.log is empty" in printed.err
    assert "Traceback" not in printed.err


def test_without_an_experiment_nothing_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text(LOG)
    assert run(["import", "train.log"]) == 2
    assert "--experiment" in capsys.readouterr().err


def test_an_unreachable_server_is_reported_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(LOG)
    assert run(["import", "train.log", "--experiment", "logs", "--tracking-uri", "http://127.0.0.1:9"]) == 2
    errors = capsys.readouterr().err
    assert "does not answer" in errors
    assert "Traceback" not in errors
