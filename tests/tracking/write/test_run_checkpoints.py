from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.run_files import RunCheckpoints

STORES = ["sqlite_uri", pytest.param("rest_server", marks=pytest.mark.slow)]


def a_checkpoint(place: Path, name: str, size: int = 100) -> Path:
    folder = place / name
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(bytes(size))
    (folder / "meta.json").write_text('{"step": 500}')
    return folder


@pytest.fixture(params=STORES)
def checkpoints(request: pytest.FixtureRequest) -> RunCheckpoints:
    client = MlflowClient(tracking_uri=request.getfixturevalue(request.param))
    return RunCheckpoints(client, str(client.create_run("0").info.run_id))


def test_a_checkpoint_is_uploaded_and_downloaded_unchanged(checkpoints: RunCheckpoints, tmp_path: Path) -> None:
    folder = a_checkpoint(tmp_path / "here", "rollback_ckpt-000500-3.8234")
    checkpoints.upload(folder)
    assert checkpoints.names() == [folder.name]
    back = checkpoints.download(folder.name, tmp_path / "back")
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def test_what_is_removed_is_gone_and_the_others_stay(checkpoints: RunCheckpoints, tmp_path: Path) -> None:
    for step in (500, 1000, 1500):
        checkpoints.upload(a_checkpoint(tmp_path / "here", f"rollback_ckpt-{step:06d}-1.0000"))
    checkpoints.remove("rollback_ckpt-001000-1.0000")
    assert checkpoints.names() == ["rollback_ckpt-000500-1.0000", "rollback_ckpt-001500-1.0000"]


def test_removing_what_is_not_there_is_no_error(checkpoints: RunCheckpoints) -> None:
    checkpoints.remove("rollback_ckpt-000500-1.0000")
    assert checkpoints.names() == []


def test_one_whose_upload_broke_off_has_no_meta(checkpoints: RunCheckpoints, tmp_path: Path) -> None:
    folder = a_checkpoint(tmp_path / "here", "rollback_ckpt-000500-1.0000")
    (folder / "meta.json").unlink()
    checkpoints.upload(folder)
    assert checkpoints.meta(folder.name, tmp_path / "meta") is None


def test_a_missing_run_is_an_error(checkpoints: RunCheckpoints, tmp_path: Path) -> None:
    nobody = RunCheckpoints(checkpoints._client, "0" * 32)
    with pytest.raises((TrackingError, LookupError)):
        nobody.names()
