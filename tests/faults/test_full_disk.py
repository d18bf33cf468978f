"""A full disk under the journal stops the recording, never the training, and the run says so."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from courier.staging import bookkeeping
from faults.endings import Training
from waiting import wait_until

pytestmark = pytest.mark.fault


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for a few hundred steps."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        assert os.environ.get("CI") != "true", "CI has the right to mount"
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_training_goes_on_with_one_warning_and_the_run_says_where_recording_stopped(
    small_disk: Path, sqlite_uri: str, tmp_path: Path
) -> None:
    environment = {"MLFLOW_STABILITY_JOURNAL_DIR": str(small_disk / "journal")}
    training = Training(tmp_path, sqlite_uri, "normal", 600, environment=environment)
    training.journal = small_disk / "journal"
    errors = training.end()
    assert training.process.returncode == 0
    assert training.steps == 600
    assert errors.count("Recording stopped at step") == 1
    wait_until(lambda: not training.journal.exists(), 15)
    run = training.run()
    result = bookkeeping(run.info.run_id, sqlite_uri)["missing"]
    steps = training.record()["step"].tolist()
    assert steps == list(range(1, len(steps) + 1))
    assert 50 < len(steps) < 600
    assert f"recording stopped at step {len(steps) + 1}" in result
    assert "No space left on device" in result
    assert run.data.tags["stability.ended"] == "finished"
    assert run.info.status == "FINISHED"
