"""What a run should know about itself, from the journal into the run."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from courier.staging import Training
from mlflow import MlflowClient
from mlflow.entities import Run

from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.courier.environment import ask_for_short_requests
from mlflow_stability.tracking.run_reader import RunReader
from mlflow_stability.vocabulary import Closing, Fact


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ask_for_short_requests()
    return tmp_path / ".mlflow-stability"


def told(root: Path, uri: str, facts: dict[str, str], **opening: Any) -> Run:
    """The run of a training that tells these facts at its first step."""
    training = Training(root, uri, **opening)
    for key, value in facts.items():
        training.journal.append(Fact(key, value, 1, time.time()))
    training.train(1, 5)
    training.end(Closing("finished", "", 5, time.time()))
    report = deliver_session(training.folder)
    assert report.error == ""
    return MlflowClient(uri).get_run(report.run_ids[0])


def test_facts_of_the_training_are_parameters_of_its_run(root: Path, sqlite_uri: str) -> None:
    run = told(root, sqlite_uri, {"learning_rate": "0.1", "model": "GPT"})
    assert run.data.params == {"stability.learning_rate": "0.1", "stability.model": "GPT"}
    said = [each for _, each in RunReader(run.info.run_id, sqlite_uri).said() if isinstance(each, Fact)]
    assert [(each.key, each.value) for each in said] == [("learning_rate", "0.1"), ("model", "GPT")]
    assert MlflowClient(sqlite_uri).list_artifacts(run.info.run_id, "stability/environment.json") == []


def test_where_one_was_cut_all_of_them_are_kept_whole(root: Path, sqlite_uri: str, tmp_path: Path) -> None:
    facts = {"argv": "train.py " + "x" * 20_000, "seed": "1"}
    run = told(root, sqlite_uri, facts)
    assert len(run.data.params["stability.argv"]) == 6000
    file = MlflowClient(sqlite_uri).download_artifacts(run.info.run_id, "stability/environment.json", str(tmp_path))
    assert json.loads(Path(file).read_text(encoding="utf-8")) == facts


def test_a_second_recording_of_the_run_tells_only_what_is_otherwise(root: Path, sqlite_uri: str) -> None:
    first = told(root, sqlite_uri, {"seed": "1", "python": "3.12"})
    run = told(root, sqlite_uri, {"seed": "2", "python": "3.12", "note": "x"}, run_id=first.info.run_id)
    assert run.data.params == {"stability.seed": "1", "stability.python": "3.12", "stability.note": "x"}
    assert run.data.tags["stability.recording_2.seed"] == "2"
    assert "stability.recording_2.python" not in run.data.tags
    assert "stability.refused" not in run.data.tags


def test_delivering_again_from_the_beginning_changes_nothing(root: Path, sqlite_uri: str) -> None:
    training = Training(root, sqlite_uri)
    training.journal.append(Fact("seed", "1"))
    training.train(1, 3)
    (run_id,) = deliver_session(training.folder).run_ids  # the training lives: the courier leaves, and comes again
    training.journal.append(Fact("batch", "float32[8, 4]"))
    training.train(4, 5)
    training.end(Closing("finished", "", 5, time.time()))
    assert deliver_session(training.folder).run_ids == (run_id,)
    run = MlflowClient(sqlite_uri).get_run(run_id)
    assert run.data.params == {"stability.seed": "1", "stability.batch": "float32[8, 4]"}
    assert not [tag for tag in run.data.tags if tag.startswith("stability.recording_")]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("lr = 0.1\n")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@here", "-c", "init.defaultBranch=main"]
    for words in (["init"], ["add", "."], ["commit", "-m", "first"]):
        subprocess.run([*git, *words], cwd=folder, check=True, capture_output=True)
    return folder


def test_the_code_is_that_of_the_training_and_is_asked_once(root: Path, sqlite_uri: str, code: Path) -> None:
    training = Training(root, sqlite_uri, directory=str(code))
    training.train(1, 3)
    deliver_session(training.folder)
    (code / "train.py").write_text("lr = 0.2\n")  # edited while it trains
    training.train(4, 5)
    training.end(Closing("finished", "", 5, time.time()))
    report = deliver_session(training.folder)
    run = MlflowClient(sqlite_uri).get_run(report.run_ids[0])
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=code, check=True, capture_output=True, text=True)
    assert run.data.params["stability.git.commit"] == head.stdout.strip()
    assert run.data.params["stability.git.dirty"] == "False"
    assert not [tag for tag in run.data.tags if tag.startswith("stability.recording_")]


def test_code_is_not_asked_for_long_after_the_training(root: Path, sqlite_uri: str, code: Path) -> None:
    training = Training(root, sqlite_uri, directory=str(code))
    training.train(1, 3)
    old = training.begin("of-last-week", directory=str(code))
    old.close()
    journal = next(training.folder.glob("*-of-last-week/journal"))
    said = journal.read_bytes()
    journal.unlink()
    (training.folder / journal.parent.name).joinpath("journal").write_bytes(_older(said, 3600.0))
    training.end(Closing("finished", "", 3, time.time()))
    report = deliver_session(training.folder)
    asked = [
        "stability.git.commit" in MlflowClient(sqlite_uri).get_run(run_id).data.params for run_id in report.run_ids
    ]
    assert sorted(asked) == [False, True]


def _older(line: bytes, seconds: float) -> bytes:
    """The same opening, written that much earlier."""
    from mlflow_stability.journal.record import decode, encode, unframe
    from mlflow_stability.vocabulary import Opening

    opening = decode(unframe(line.rstrip(b"\n")))
    assert isinstance(opening, Opening)
    fields = {name: getattr(opening, name) for name in opening.__slots__}
    return encode(Opening(**{**fields, "time": opening.time - seconds}))
