from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from mlflow_stability.cli.main import run
from mlflow_stability.recovery.checkpoints.stored_checkpoints import CheckpointMeta
from mlflow_stability.tracking.run_files import RunCheckpoints


def keep(
    place: Path,
    step: int,
    *,
    good: bool = True,
    content: bytes = b"weights",
    written: bytes = b"weights",
    **facts: Any,
) -> Path:
    meta = CheckpointMeta(
        step, 1.25, hashlib.sha256(content).hexdigest(), len(content), time.time(), good=good, **facts
    )
    folder = place / meta.name
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(written)
    (folder / "meta.json").write_bytes(meta.to_json())
    return folder


@pytest.fixture(params=["sqlite_uri", pytest.param("rest_server", marks=pytest.mark.slow)])
def checkpoints(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RunCheckpoints:
    uri = request.getfixturevalue(request.param)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = MlflowClient(tracking_uri=uri)
    return RunCheckpoints(client, str(client.create_run("0").info.run_id))


def test_checkpoints_are_listed_oldest_first(
    checkpoints: RunCheckpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints.upload(keep(tmp_path, 1000, good=False))
    checkpoints.upload(keep(tmp_path, 500))
    assert run(["checkpoints", checkpoints.run_id]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows] == [("500", "1.25"), ("1000", "1.25")]
    assert rows[0][-4:] == ["good", "(best,", "last", "good)"]
    assert rows[1][-5:] == ["not", "confirmed", "as", "good", "yet"]


def test_the_best_by_a_metric_and_the_last_good_one_are_marked(
    checkpoints: RunCheckpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, value in ((500, 0.7), (1000, 0.9), (1500, 0.8)):
        checkpoints.upload(keep(tmp_path, step, best_by="accuracy", mode="max", value=value))
    checkpoints.upload(keep(tmp_path, 2000, good=False, best_by="accuracy", mode="max"))
    assert run(["checkpoints", checkpoints.run_id]) == 0
    title, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert title[:3] == ["step", "loss", "accuracy"]
    assert [row[2] for row in rows[:3]] == ["0.7", "0.9", "0.8"]
    assert [" ".join(row).partition("good")[2] for row in rows[:3]] == ["", " (best)", " (last good)"]


def test_a_damaged_checkpoint_is_found_by_its_hash(
    checkpoints: RunCheckpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints.upload(keep(tmp_path, 500, written=b"weightz"))
    checkpoints.upload(keep(tmp_path, 1000))
    assert run(["checkpoints", checkpoints.run_id]) == 0
    capsys.readouterr()
    assert run(["checkpoints", checkpoints.run_id, "--verify"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "its SHA-256 differs" in text
    assert "good, verified (best, last good)" in text


def test_a_downloaded_checkpoint_equals_the_one_that_was_written(
    checkpoints: RunCheckpoints, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = keep(tmp_path / "kept", 500)
    checkpoints.upload(folder)
    checkpoints.upload(keep(tmp_path / "kept", 1000))
    assert run(["checkpoints", checkpoints.run_id, "--download", str(tmp_path / "back"), "--step", "500"]) == 0
    assert [path.name for path in (tmp_path / "back").iterdir()] == [folder.name]
    assert (tmp_path / "back" / folder.name / "state.pt").read_bytes() == b"weights"
    assert "%" not in capfd.readouterr().err, "a progress bar is for terminals"


@pytest.mark.parametrize("more", [[], ["--step", "7"]])
def test_a_missing_checkpoint_is_reported_with_code_2(
    checkpoints: RunCheckpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    if more:
        checkpoints.upload(keep(tmp_path, 500))
    assert run(["checkpoints", checkpoints.run_id, *more]) == 2
    assert "has no checkpoint" in capsys.readouterr().err
