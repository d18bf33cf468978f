"""What a run should know about itself, from the journal into the run.

What git says of a training's code, asked of real repositories.
"""

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

from mlflow_stability.courier.deliver import ask_for_short_requests, deliver_session
from mlflow_stability.courier.sinks.file_sinks import MOST_LINES, git_state
from mlflow_stability.tracking.read.run_reader import RunReader, read_run_history
from mlflow_stability.vocabulary.run import Closing, Fact

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ask_for_short_requests()
    return tmp_path / ".mlflow-stability"


def run_with_facts(root: Path, uri: str, facts: dict[str, str], **opening: Any) -> Run:
    """The run of a training that tells these facts at its first step."""
    training = Training(root, uri, **opening)
    for key, value in facts.items():
        training.journal.append(Fact(key, value, 1, time.time()))
    training.train(1, 5)
    training.end(Closing("finished", "", 5, time.time()))
    report = deliver_session(training.folder)
    assert report.error == ""
    return MlflowClient(uri).get_run(report.run_ids[0])


@pytest.mark.slow
def test_facts_of_the_training_are_parameters_of_its_run(root: Path, sqlite_uri: str) -> None:
    run = run_with_facts(root, sqlite_uri, {"learning_rate": "0.1", "model": "GPT"})
    assert run.data.params == {"stability.learning_rate": "0.1", "stability.model": "GPT"}
    items = [item for _, item in RunReader(run.info.run_id, sqlite_uri).event_lines() if isinstance(item, Fact)]
    assert [(point.key, point.value) for point in items] == [("learning_rate", "0.1"), ("model", "GPT")]


@pytest.mark.slow
def test_facts_that_users_do_not_choose_are_not_parameters_but_can_be_read_back(root: Path, sqlite_uri: str) -> None:
    facts = {"argv": "train.py " + "x" * 20_000, "seed": "1", "eps": "1e-08", "group_1.weight_decay": "0"}
    run = run_with_facts(root, sqlite_uri, facts)
    assert run.data.params == {"stability.seed": "1", "stability.group_1.weight_decay": "0"}
    reader = RunReader(run.info.run_id, sqlite_uri)
    assert reader.fetched("stability/data/environment.json", lambda file: json.loads(file.read_text())) == facts
    history = read_run_history(run.info.run_id, sqlite_uri)
    assert history.params == {f"stability.{key}": value for key, value in facts.items()}


@pytest.mark.slow
def test_a_second_recording_of_a_run_adds_only_new_and_changed_settings(root: Path, sqlite_uri: str) -> None:
    first = run_with_facts(root, sqlite_uri, {"seed": "1", "betas": "(0.9, 0.95)"})
    run = run_with_facts(
        root, sqlite_uri, {"seed": "2", "betas": "(0.9, 0.95)", "model": "x"}, run_id=first.info.run_id
    )
    assert run.data.params == {
        "stability.seed": "1",
        "stability.betas": "(0.9, 0.95)",
        "stability.model": "x",
    }
    assert run.data.tags["stability.changed_settings"] == "recording 2: seed 2 (was 1)"
    assert "stability.refused" not in run.data.tags


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_code_is_that_of_the_training_and_is_asked_once(root: Path, sqlite_uri: str, code: Path) -> None:
    training = Training(root, sqlite_uri, directory=str(code))
    training.train(1, 3)
    deliver_session(training.folder)
    (code / "train.py").write_text("lr = 0.2\n")  # edited while it trains
    training.train(4, 5)
    training.end(Closing("finished", "", 5, time.time()))
    report = deliver_session(training.folder)
    run = MlflowClient(sqlite_uri).get_run(report.run_ids[0])
    params = read_run_history(report.run_ids[0], sqlite_uri).params
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=code, check=True, capture_output=True, text=True)
    assert params["stability.git.commit"] == head.stdout.strip()
    assert params["stability.git.dirty"] == "False"
    assert not [tag for tag in run.data.tags if tag.startswith("stability.recording_")]


@pytest.mark.slow
def test_code_is_not_asked_for_long_after_the_training(root: Path, sqlite_uri: str, code: Path) -> None:
    training = Training(root, sqlite_uri, directory=str(code))
    training.train(1, 3)
    old = training.begin("of-last-week", directory=str(code))
    old.close()
    journal = next(training.folder.glob("*-of-last-week/journal"))
    content = journal.read_bytes()
    journal.unlink()
    (training.folder / journal.parent.name).joinpath("journal").write_bytes(_older(content, 3600.0))
    training.end(Closing("finished", "", 3, time.time()))
    report = deliver_session(training.folder)
    asked = [
        any(
            isinstance(item, Fact) and item.key == "git.commit"
            for _, item in RunReader(run_id, sqlite_uri).event_lines()
        )
        for run_id in report.run_ids
    ]
    assert sorted(asked) == [False, True]


def _older(line: bytes, seconds: float) -> bytes:
    """The same opening, written that much earlier."""
    from mlflow_stability.journal.journal import decode, encode, unframe
    from mlflow_stability.vocabulary.run import Opening

    opening = decode(unframe(line.rstrip(b"\n")))
    assert isinstance(opening, Opening)
    fields = {name: getattr(opening, name) for name in opening.__slots__}
    return encode(Opening(**{**fields, "time": opening.time - seconds}))


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=me", "-c", "user.email=me@here", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init")
    (folder / "train.py").write_text("lr = 0.1\nsteps = 10\n")
    git(folder, "add", "train.py")
    git(folder, "commit", "-m", "first")
    return folder


def test_committed_code_is_described_by_its_commit(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert git_state(str(repository)) == {"git.commit": head, "git.branch": "main", "git.dirty": "False"}


def test_changes_since_the_commit_are_summarized(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 0.2\nsteps = 10\n")
    (repository / "new.py").write_text("x = 1\n")
    (repository / "data.bin").write_text("not code\n")
    state = git_state(str(repository))
    assert state["git.dirty"] == "True"
    assert "train.py | 2 +-" in state["git.diff"]
    assert "1 file changed, 1 insertion(+), 1 deletion(-)" in state["git.diff"]
    assert state["git.untracked"] == "new.py"


def test_staged_changes_count_as_changes(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 0.3\n")
    git(repository, "add", "train.py")
    assert git_state(str(repository))["git.dirty"] == "True"


def test_a_folder_in_a_repository_has_the_state_of_the_repository(repository: Path) -> None:
    inner = repository / "a folder"
    inner.mkdir()
    (inner / "ünter.py").write_text("")
    state = git_state(str(inner))
    assert state["git.commit"] == git(repository, "rev-parse", "HEAD")
    assert state["git.untracked"] == "ünter.py"


def test_a_detached_head_is_reported_as_the_branch(repository: Path) -> None:
    git(repository, "checkout", "--detach")
    assert git_state(str(repository))["git.branch"] == "(detached)"


def test_the_state_of_a_repository_without_commits_names_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("")
    git(tmp_path, "add", "train.py")
    state = git_state(str(tmp_path))
    assert "git.commit" not in state
    assert (state["git.dirty"], state["git.branch"]) == ("True", "main")


def test_git_state_is_empty_without_a_repository_or_without_a_folder(tmp_path: Path) -> None:
    assert git_state(str(tmp_path)) == {}
    assert git_state(str(tmp_path / "gone")) == {}
    assert git_state("") == {}


def test_git_state_is_empty_where_git_is_not_installed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert git_state(str(repository)) == {}


def test_long_lists_of_changes_are_shortened(repository: Path) -> None:
    names = [f"module_{number:03d}.py" for number in range(120)]
    for name in names:
        (repository / name).write_text("a = 1\n")
    git(repository, "add", *names)
    git(repository, "commit", "-m", "many")
    for name in names:
        (repository / name).write_text("a = 2\n")
        (repository / f"new_{name}").write_text("")
    state = git_state(str(repository))
    assert len(state["git.diff"].splitlines()) <= MOST_LINES + 2
    assert "120 files changed" in state["git.diff"]
    assert state["git.untracked"].splitlines()[-1] == "and 70 more"


def test_asking_runs_no_program_of_the_repository_and_writes_nothing(repository: Path) -> None:
    ran = repository.parent / "ran"
    script = repository.parent / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o700)
    for key in ("core.fsmonitor", "diff.external", "core.pager"):
        git(repository, "config", key, str(script))
    (repository / "train.py").write_text("lr = 0.5\n")
    index = (repository / ".git" / "index").read_bytes()
    assert git_state(str(repository))["git.diff"]
    assert not ran.exists()
    assert (repository / ".git" / "index").read_bytes() == index
