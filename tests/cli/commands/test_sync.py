from __future__ import annotations

import time
from pathlib import Path

import pytest
from courier.staging import Training

from mlflow_stability import load_run
from mlflow_stability.cli.main import run
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.vocabulary.run import Closing

pytestmark = pytest.mark.usefixtures("blank_pictures")

ROOT = Path(".mlflow-stability")


def killed_training(root: Path, uri: str, steps: int = 50, **opening: str) -> Training:
    training = Training(root, uri, **opening)
    training.train(1, steps)
    training.end()
    return training


def run_ids_in(text: str) -> list[str]:
    return [line.rpartition(" to ")[2].rstrip(".") for line in text.splitlines() if ": delivered" in line]


def test_nothing_to_deliver_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sync"]) == 0
    assert "Nothing to deliver" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("named", ["nothing", "root", "session"])
def test_what_a_kill_left_behind_is_delivered(
    named: str, sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = killed_training(tmp_path / ROOT, sqlite_uri)
    place = {"nothing": [], "root": [str(ROOT)], "session": [str(training.folder)]}[named]
    assert run(["sync", *place]) == 0
    (run_id,) = run_ids_in(capsys.readouterr().out)
    assert list(load_run(run_id, sqlite_uri)["step"]) == list(range(1, 51))
    assert RunReader(run_id, sqlite_uri).tags["stability.ended"] == "killed"
    assert not ROOT.exists()
    assert run(["sync"]) == 0


@pytest.mark.slow
def test_every_session_of_a_journal_directory_is_delivered(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in (10, 20):
        killed_training(tmp_path / ROOT, sqlite_uri, steps)
    assert run(["sync"]) == 0
    lengths = [len(load_run(run_id, sqlite_uri)) for run_id in run_ids_in(capsys.readouterr().out)]
    assert sorted(lengths) == [10, 20]


@pytest.mark.slow
def test_progress_is_for_terminals_only(sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed_training(tmp_path / ROOT, sqlite_uri)
    assert run(["sync"]) == 0
    assert capsys.readouterr().err == ""


def test_a_server_that_is_away_gives_code_2_and_keeps_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = killed_training(tmp_path / ROOT, "http://127.0.0.1:9")
    assert run(["sync", "--wait", "0.5"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("mlflow-stability: Not everything could be delivered.")
    assert "run `mlflow-stability sync` again" in errors
    assert "Traceback" not in errors
    assert training.folder.is_dir()


def test_credentials_come_by_the_option_and_another_store_is_refused(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_training(tmp_path / ROOT, "http://127.0.0.1:9")
    assert run(["sync", "--tracking-uri", "http://me:hunter2@127.0.0.1:9", "--wait", "0.5"]) == 2
    printed = capsys.readouterr()
    assert "hunter2" not in printed.out + printed.err
    assert run(["sync", "--tracking-uri", sqlite_uri]) == 2
    assert "another store" in capsys.readouterr().err


def test_a_folder_that_is_no_journal_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    assert run(["sync", "photos"]) == 2
    assert "has no journal of mlflow-stability" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [["checkpoints"], ["batches"], ["checkpoints", "batches", ".gitignore"]])
def test_what_outlives_a_training_is_nothing_to_deliver(kept: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for value in kept:
        (ROOT / value / "8f7d983df20a").mkdir(parents=True)
    assert run(["sync"]) == 0
    assert f"Nothing to deliver: {ROOT.absolute()} has only checkpoints and batches." in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_that_goes_on_gets_what_it_has_so_far_delivered(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path / ROOT, sqlite_uri)
    training.train(1, 30)
    try:
        assert run(["sync"]) == 0
        assert training.folder.is_dir()
        training.train(31, 60)
    finally:
        training.end(Closing("finished", "", 60, time.time()))
    capsys.readouterr()
    assert run(["sync"]) == 0
    (run_id,) = run_ids_in(capsys.readouterr().out)
    assert list(load_run(run_id, sqlite_uri)["step"]) == list(range(1, 61))
