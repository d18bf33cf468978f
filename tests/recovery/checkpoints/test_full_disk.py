"""A full disk under the checkpoints costs the newest one, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.checkpoint_writer import CheckpointWriter
from mlflow_stability.recovery.checkpoints.state_file import read_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import find, listing
from mlflow_stability.recovery.state.state_copy import StateCopy, copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts

pytestmark = pytest.mark.fault


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for two checkpoints and a half."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        assert os.environ.get("CI") != "true", "CI has the right to mount"
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def state(step: int) -> StateCopy:
    model = nn.Linear(300, 300)
    with torch.no_grad():
        model.weight.fill_(step)
    return copy_state(TrainingParts((), (model,)), step)


def test_a_full_disk_is_an_event_and_what_is_there_stays_whole(small_disk: Path) -> None:
    writer = CheckpointWriter(CheckpointStore(small_disk / "c", "r"), lambda copy: not copy.not_finite())
    for step in (1, 2, 3, 4):
        assert writer.submit(state(step), 1.0)
        assert writer.drain(30)
    events = writer.events()
    assert [(event.step, event.kind) for event in events] == [(3, "checkpoint_failed"), (4, "checkpoint_failed")]
    assert "No space left on device" in events[0].message
    assert "newest checkpoint there: step 2" in events[0].message
    assert [point.step for point in listing(small_disk / "c")] == [1, 2]
    assert not list((small_disk / "c").glob(".writing-*"))
    findings = find(small_disk / "c", "newest")
    assert bool((read_state(findings.checkpoint.folder / "state.pt").tensors["weight"] == 2).all())
    writer.reject(1)
    assert writer.submit(state(5), 1.0)
    assert writer.close(30)
    assert [point.step for point in listing(small_disk / "c")] == [2, 5]
    assert writer.events() == []
