"""Checkpoints that proved themselves follow the recording into its run, and leave it again."""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

import pytest
from courier.staging import Training
from mlflow import MlflowClient

from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.file_sinks import CheckpointSink
from mlflow_stability.recovery.checkpoints.stored_checkpoints import CheckpointMeta
from mlflow_stability.tracking.run_files import RunCheckpoints
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.run import Closing, Note

pytestmark = pytest.mark.usefixtures("blank_pictures")


def keep(directory: Path, step: int, good: bool = True, content: bytes = b"weights") -> Path:
    meta = CheckpointMeta(step, 1.0, hashlib.sha256(content).hexdigest(), len(content), time.time(), good=good)
    folder = directory / meta.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.pt").write_bytes(content)
    (folder / "meta.json").write_bytes(meta.to_json())
    return folder


@pytest.fixture
def run(sqlite_uri: str) -> RunCheckpoints:
    client = MlflowClient(tracking_uri=sqlite_uri)
    return RunCheckpoints(client, str(client.create_run("0").info.run_id))


def sink_of(run: RunCheckpoints, folder: Path) -> CheckpointSink:
    return CheckpointSink(Delivered(folder), RunWriter(run._client, run.run_id), folder / "kept")


def drive(sink: CheckpointSink) -> None:
    while sink.flush(over=True) or not sink.done:
        pass


def test_only_what_has_proved_itself_is_sent_and_the_newest_first(run: RunCheckpoints, tmp_path: Path) -> None:
    keep(tmp_path / "kept", 500)
    keep(tmp_path / "kept", 1000)
    keep(tmp_path / "kept", 1500, good=False)
    sink = sink_of(run, tmp_path)
    assert sink.flush(over=False)
    assert run.names() == ["rollback_ckpt-001000-1.0000"]
    drive(sink)
    assert run.names() == ["rollback_ckpt-000500-1.0000", "rollback_ckpt-001000-1.0000"]


def test_what_the_training_removed_is_removed_from_the_run(run: RunCheckpoints, tmp_path: Path) -> None:
    old = keep(tmp_path / "kept", 500)
    keep(tmp_path / "kept", 1000)
    drive(sink_of(run, tmp_path))
    shutil.rmtree(old)
    drive(sink_of(run, tmp_path))  # a new courier knows what the one before had sent
    assert run.names() == ["rollback_ckpt-001000-1.0000"]


def test_one_that_is_damaged_on_the_disk_is_not_sent(run: RunCheckpoints, tmp_path: Path) -> None:
    (keep(tmp_path / "kept", 500) / "state.pt").write_bytes(b"weightz")
    drive(sink_of(run, tmp_path))
    assert run.names() == []


def test_an_upload_that_broke_off_is_done_again(run: RunCheckpoints, tmp_path: Path) -> None:
    folder = keep(tmp_path / "kept", 500)
    torn = tmp_path / "torn" / folder.name
    torn.mkdir(parents=True)
    (torn / "state.pt").write_bytes(b"wei")
    run.upload(torn)
    drive(sink_of(run, tmp_path))
    back = run.download(folder.name, tmp_path / "back")
    assert (back / "state.pt").read_bytes() == b"weights"


def test_nothing_is_left_beside_the_checkpoints(run: RunCheckpoints, tmp_path: Path) -> None:
    keep(tmp_path / "kept", 500)
    drive(sink_of(run, tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_recording_brings_its_checkpoints_along(tmp_path: Path, sqlite_uri: str) -> None:
    training = Training(tmp_path / ".mlflow-stability", sqlite_uri)
    keep(tmp_path / "kept", 500)
    training.train(1, 5)
    training.journal.append(Note("checkpoints", str(tmp_path / "kept"), 5, time.time()))
    training.end(Closing("finished", "", 5, time.time()))
    report = deliver_session(training.folder)
    assert (report.remaining, report.error) == (0, "")
    names = RunCheckpoints(MlflowClient(tracking_uri=sqlite_uri), report.run_ids[0]).names()
    assert names == ["rollback_ckpt-000500-1.0000"]
