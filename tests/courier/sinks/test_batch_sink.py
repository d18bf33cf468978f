"""Batches of broken steps follow their recording into its run, if they were announced."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from courier.staging import Training
from mlflow import MlflowClient

from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.file_sinks import BATCHES_FOLDER, BatchSink
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.run import Closing, Note

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture
def writer(sqlite_uri: str) -> RunWriter:
    client = MlflowClient(tracking_uri=sqlite_uri)
    return RunWriter(client, str(client.create_run("0").info.run_id))


def keep(directory: Path, step: int, content: bytes = b"tensors") -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / f"batch-{step:06d}.pt"
    file.write_bytes(content)
    return file


def drive(sink: BatchSink) -> None:
    while sink.flush(over=True) or not sink.done:
        pass


def sent(uri: str, run_id: str) -> list[str]:
    listed = MlflowClient(tracking_uri=uri).list_artifacts(run_id, BATCHES_FOLDER)
    return sorted(Path(item.path).name for item in listed)


def test_files_are_named_by_recording_and_by_the_step_that_the_run_counts(
    writer: RunWriter, sqlite_uri: str, tmp_path: Path
) -> None:
    keep(tmp_path / "kept", 7)
    (tmp_path / "kept" / ".batch-000008.pt.4711").write_bytes(b"half a file")
    drive(BatchSink(Delivered(tmp_path, number=2, offset=100), writer, tmp_path / "kept"))
    assert sent(sqlite_uri, writer.run_id) == ["recording-002-batch-000107.pt"]


def test_what_comes_while_training_goes_on_is_sent_before_its_end(
    writer: RunWriter, sqlite_uri: str, tmp_path: Path
) -> None:
    sink = BatchSink(Delivered(tmp_path), writer, tmp_path / "kept")
    keep(tmp_path / "kept", 7)
    assert sink.flush(over=False)
    keep(tmp_path / "kept", 9)
    assert sink.flush(over=False)
    assert not sink.flush(over=False)
    assert not sink.done
    assert len(sent(sqlite_uri, writer.run_id)) == 2


def test_a_folder_that_is_gone_holds_nothing_up(writer: RunWriter, tmp_path: Path) -> None:
    drive(BatchSink(Delivered(tmp_path), writer, tmp_path / "never made"))


@pytest.mark.parametrize("announced", [True, False])
def test_a_recording_brings_its_batches_along_only_if_it_says_so(
    tmp_path: Path, sqlite_uri: str, announced: bool
) -> None:
    training = Training(tmp_path / ".mlflow-stability", sqlite_uri)
    keep(tmp_path / "kept", 3, b"what broke")
    training.train(1, 5)
    if announced:
        training.journal.append(Note("batches", str(tmp_path / "kept"), 5, time.time()))
    training.end(Closing("finished", "", 5, time.time()))
    report = deliver_session(training.folder)
    assert (report.remaining, report.error) == (0, "")
    (run_id,) = report.run_ids
    names = sent(sqlite_uri, run_id)
    assert names == (["recording-000-batch-000003.pt"] if announced else [])
    if announced:
        file = MlflowClient(sqlite_uri).download_artifacts(run_id, f"{BATCHES_FOLDER}/{names[0]}", str(tmp_path))
        assert Path(file).read_bytes() == b"what broke"
    assert list(tmp_path.glob("**/.sending-*")) == []
