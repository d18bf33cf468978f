"""What git says of a training's code, asked of real repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mlflow_stability.courier.git_state import MOST_LINES, git_state


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


def test_code_as_it_was_committed_is_told_by_its_commit(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert git_state(str(repository)) == {"git.commit": head, "git.branch": "main", "git.dirty": "False"}


def test_what_was_changed_since_is_told_in_short(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 0.2\nsteps = 10\n")
    (repository / "new.py").write_text("x = 1\n")
    (repository / "data.bin").write_text("not code\n")
    state = git_state(str(repository))
    assert state["git.dirty"] == "True"
    assert "train.py | 2 +-" in state["git.diff"]
    assert "1 file changed, 1 insertion(+), 1 deletion(-)" in state["git.diff"]
    assert state["git.untracked"] == "new.py"


def test_what_is_staged_counts_as_changed(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 0.3\n")
    git(repository, "add", "train.py")
    assert git_state(str(repository))["git.dirty"] == "True"


def test_a_folder_within_a_repository_is_asked_like_it(repository: Path) -> None:
    inner = repository / "a folder"
    inner.mkdir()
    (inner / "ünter.py").write_text("")
    state = git_state(str(inner))
    assert state["git.commit"] == git(repository, "rev-parse", "HEAD")
    assert state["git.untracked"] == "ünter.py"


def test_a_commit_that_is_on_no_branch_is_told(repository: Path) -> None:
    git(repository, "checkout", "--detach")
    assert git_state(str(repository))["git.branch"] == "(detached)"


def test_a_repository_without_a_commit_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("")
    git(tmp_path, "add", "train.py")
    state = git_state(str(tmp_path))
    assert "git.commit" not in state
    assert (state["git.dirty"], state["git.branch"]) == ("True", "main")


def test_where_there_is_no_repository_and_no_folder_nothing_is_told(tmp_path: Path) -> None:
    assert git_state(str(tmp_path)) == {}
    assert git_state(str(tmp_path / "gone")) == {}
    assert git_state("") == {}


def test_without_git_nothing_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert git_state(str(repository)) == {}


def test_of_very_many_changes_only_so_many_are_told(repository: Path) -> None:
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
