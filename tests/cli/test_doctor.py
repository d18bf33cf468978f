from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from courier.staging import Training

import mlflow_stability
from mlflow_stability.cli.main import run
from mlflow_stability.probes.hook_handles import HookHandles
from mlflow_stability.probes.patch_points import PATCH_POINTS, missing_patch_points

HERE = Path(".mlflow-stability")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A server that takes calls and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_place_where_all_is_well_gives_code_0(sqlite_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 0
    said = capsys.readouterr().out
    assert "Everything is in place." in said
    assert torch.__version__ in said
    assert not HERE.exists()


def test_a_store_that_mlflow_has_not_made_yet_is_fine_and_is_not_made(tmp_path: Path) -> None:
    assert run(["doctor"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_away_gives_code_2_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--tracking-uri", "http://me:hunter2@127.0.0.1:9"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "tracking server http://127.0.0.1:9 does not answer: Connection refused" in said
    assert "its journal waits for the store" in said
    assert "hunter2" not in said


def test_a_store_that_never_answers_is_given_five_seconds(silent_address: str) -> None:
    run(["doctor"])  # MLflow is loaded by then
    began = time.monotonic()
    assert run(["doctor", "--tracking-uri", silent_address]) == 2
    assert time.monotonic() - began < 10


def test_a_journal_that_was_left_behind_gives_code_1_and_names_sync(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path / HERE, sqlite_uri)
    training.train(1, 20)
    training.end()
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 1
    said = capsys.readouterr().out
    assert f"{training.folder.name} was left behind" in said
    assert "mlflow-stability sync" in said


def test_a_training_in_progress_is_nothing_to_worry_about(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path / HERE, sqlite_uri)
    training.train(1, 20)
    try:
        assert run(["doctor", "--tracking-uri", sqlite_uri]) == 0
    finally:
        training.end()
    assert f"{training.folder.name}: training and courier run" in capsys.readouterr().out


def test_a_journal_directory_that_cannot_be_made_gives_code_2(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_file").touch()
    monkeypatch.setenv("MLFLOW_STABILITY_JOURNAL_DIR", str(tmp_path / "a_file" / "journals"))
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 2
    assert "cannot be written to" in capsys.readouterr().out


def test_the_kill_switch_is_seen(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_STABILITY_DISABLE", "1")
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 1
    assert "MLFLOW_STABILITY_DISABLE is set" in capsys.readouterr().out


def test_this_torch_has_every_patch_point() -> None:
    assert missing_patch_points() == {}


def test_every_name_that_watching_patches_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    patched: list[tuple[object, str]] = []
    patch = HookHandles.patch

    def noted(handles: HookHandles, owner: object, name: str, around: object) -> None:
        patched.append((owner, name))
        patch(handles, owner, name, around)  # type: ignore[arg-type]

    monkeypatch.setattr(HookHandles, "patch", noted)
    mlflow_stability.autolog()
    mlflow_stability.autolog(disable=True)
    asked = {(_owner(where), where.rpartition(".")[2].rpartition(":")[2]) for where in PATCH_POINTS}
    assert patched
    assert {(id(owner), name) for owner, name in patched} <= {(id(owner), name) for owner, name in asked}


def _owner(where: str) -> object:
    from importlib import import_module

    module, _, path = where.partition(":")
    owner: object = import_module(module)
    for name in path.split(".")[:-1]:
        owner = getattr(owner, name)
    return owner
