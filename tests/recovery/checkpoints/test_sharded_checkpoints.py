"""Checkpoints of states that are split over processes: whole or not there, and restored on any number of them."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked.processes import start
from mlflow import MlflowClient
from probes.ranks.launching import Ended, launch
from recovery.checkpoints import rank_store_faults, sharded_training
from torch import nn
from torch.distributed.checkpoint import FileSystemWriter, SavePlan
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mlflow_stability
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.file_sinks import CheckpointSink
from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointRanks, CheckpointStore, RankStore
from mlflow_stability.recovery.checkpoints.state_file import _member_of_enum, layouts_of
from mlflow_stability.recovery.checkpoints.stored_checkpoints import listing
from mlflow_stability.recovery.state.state_copy import copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts, find_parts
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.result import Severity

TRAINING = str(Path(sharded_training.__file__))
SECONDS = 300.0


def together(processes: int, *arguments: str) -> list[Ended]:
    ended = launch(processes, TRAINING, *arguments, seconds=SECONDS)
    assert [item.code for item in ended] == [0] * processes, [item.errors[-2000:] for item in ended]
    return ended


def alone(*arguments: str) -> str:
    """One process that knows of no others."""
    environment = {key: item for key, item in os.environ.items() if key != "RANK"}
    process = start(Path(TRAINING), *arguments, environment=environment)
    printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors[-2000:]
    return printed


@pytest.mark.slow
@pytest.mark.scenario
def test_what_four_ranks_saved_is_restored_bit_for_bit_on_four_two_and_one(tmp_path: Path) -> None:
    together(4, "save", "fsdp2", str(tmp_path))
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    stored = listing(directory)
    assert [item.is_good for item in stored] == [True] * len(stored)
    assert len(stored) >= 2
    for item in stored:
        assert item.meta is not None
        names = sorted(file.name for file in item.folder.iterdir())
        shards = [f"__{rank}_0.distcp" for rank in range(4)]
        assert names == [".metadata", *shards, "meta.json", "state.pt"]
        assert sorted(name for name, _, _ in item.meta.shards) == [".metadata", *shards]
    for processes in (4, 2, 1):
        ended = together(processes, "restore", "fsdp2", str(tmp_path))
        is_told = "Random numbers were not restored" in ended[0].printed
        assert is_told is (processes != 4)
    assert "equal" in alone("restore", "whole", str(tmp_path))


@pytest.mark.slow
@pytest.mark.scenario
def test_shards_in_two_directions_are_restored_where_nothing_is_split(tmp_path: Path) -> None:
    together(4, "save", "tensor_fsdp2", str(tmp_path))
    assert "equal" in alone("restore", "whole", str(tmp_path))


@pytest.mark.slow
@pytest.mark.scenario
def test_if_one_rank_fails_to_write_no_rank_writes_and_none_waits(tmp_path: Path) -> None:
    first, second = launch(2, str(Path(rank_store_faults.__file__)), str(tmp_path / "c"), seconds=SECONDS)
    assert first.code == 0, first.errors[-2000:]
    lines = dict(line.split(" ", 1) for line in first.printed.splitlines())
    assert lines["10"] == "OSError its shards on rank 1 are not finite"
    assert lines["20"] == "OSError processes are at different steps: 20, 21"
    assert lines["30"] == "OSError rank 1: No space left on device"
    assert lines["40"] == "written"
    assert lines["50"].startswith("RuntimeError")
    assert "40 nothing" in second.printed, "it has no directory of its own"
    assert [point.step for point in listing(tmp_path / "c")] == [40]
    assert not list((tmp_path / "c").glob(".writing-*"))


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[TrainingParts]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    yield find_parts([optimizer])
    dist.destroy_process_group()


def saved(parts: TrainingParts, folder: Path, *steps: int) -> list[Path]:
    own = CheckpointStore(folder, "run")
    store = RankStore(CheckpointRanks(alone=True), lambda: layouts_of(parts), own)
    for step in steps:
        assert store.commit(copy_state(parts, step), 1.0, None, finite=True) is not None
        own.promote(step)
    own.close()
    return [item.folder for item in listing(folder)]


def restored(folder: Path) -> tuple[nn.Linear, mlflow_stability.recovery.checkpoints.resume.Resumed]:  # type: ignore[name-defined]
    model = nn.Linear(4, 4)
    return model, mlflow_stability.restore(model, torch.optim.AdamW(model.parameters()), directory=folder)


def test_a_checkpoint_with_a_damaged_shard_is_skipped(parts: TrainingParts, tmp_path: Path) -> None:
    _, newest = saved(parts, tmp_path / "c", 10, 20)
    shard = newest / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    model, resumed = restored(tmp_path / "c")
    assert resumed.step == 10
    assert "__0_0.distcp is damaged: its SHA-256 differs" in resumed.messages[0]
    assert torch.equal(model.weight, parts.models[0].weight.full_tensor())  # type: ignore[union-attr,operator]


def test_what_was_uploaded_as_it_is_is_fetched_where_the_folder_is_gone(
    parts: TrainingParts, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = saved(parts, tmp_path / "c", 10)
    client = MlflowClient(sqlite_uri)
    run_id = client.create_run("0").info.run_id
    sink = CheckpointSink(Delivered(tmp_path), RunWriter(client, run_id), tmp_path / "c")
    while sink.flush(over=True):
        pass
    assert sink.done
    uploaded = client.list_artifacts(run_id, f"stability/checkpoints/{folder.name}")
    names = sorted(Path(item.path).name for item in uploaded)
    assert names == [".metadata", "__0_0.distcp", "meta.json", "state.pt"]
    shutil.rmtree(tmp_path / "c")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setenv("MLFLOW_STABILITY_JOURNAL_DIR", str(tmp_path / "elsewhere"))
    model = nn.Linear(4, 4)
    resumed = mlflow_stability.restore(model, torch.optim.AdamW(model.parameters()), run_id=run_id)
    assert resumed.step == 10
    assert torch.equal(model.weight, parts.models[0].weight.full_tensor())  # type: ignore[union-attr,operator]


class Bomb:
    """Makes a folder as it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def write_list(folder: Path, content: object) -> None:
    """Replace the list of shards, and take its hash and size out of `meta.json`, as whoever forges one does."""
    (folder / ".metadata").write_bytes(pickle.dumps(content))
    facts = json.loads((folder / "meta.json").read_text())
    facts["shards"] = [shard for shard in facts["shards"] if shard[0] != ".metadata"]
    facts["size"] = sum(shard[1] for shard in facts["shards"]) + (folder / "state.pt").stat().st_size
    (folder / "meta.json").write_text(json.dumps(facts))


def test_a_list_of_shards_that_would_run_code_is_refused(parts: TrainingParts, tmp_path: Path) -> None:
    (folder,) = saved(parts, tmp_path / "c", 10)
    write_list(folder, Bomb(tmp_path / "broken in"))
    with pytest.raises(CheckpointsRefused, match=r"names posix\.mkdir: expected only data"):
        restored(tmp_path / "c")
    assert not (tmp_path / "broken in").exists()


def test_a_shard_that_is_no_tensor_is_never_unpickled(parts: TrainingParts, tmp_path: Path) -> None:
    """torch reads an entry of the kind "bytes" by pickle, whatever the training asks for."""
    (folder,) = saved(parts, tmp_path / "c", 10)
    content = pickle.loads((folder / ".metadata").read_bytes())
    torch.save(Bomb(tmp_path / "broken in"), folder / "bomb")
    for index in [*content.storage_data]:
        storage = replace(content.storage_data.pop(index), relative_path="bomb", offset=0)
        storage = replace(storage, length=(folder / "bomb").stat().st_size)
        content.storage_data[MetadataIndex(index.fqn)] = storage
        content.state_dict_metadata[index.fqn] = BytesStorageMetadata()
    write_list(folder, content)
    with pytest.raises(CheckpointsRefused, match="lists an entry that is not a tensor"):
        restored(tmp_path / "c")
    assert not (tmp_path / "broken in").exists()


@pytest.mark.parametrize("place", ["../secret", "/etc/hostname", "a/b", "..", ""])
def test_a_shard_outside_of_its_checkpoint_is_not_read(parts: TrainingParts, tmp_path: Path, place: str) -> None:
    (folder,) = saved(parts, tmp_path / "c", 10)
    content = pickle.loads((folder / ".metadata").read_bytes())
    for index, storage in content.storage_data.items():
        content.storage_data[index] = replace(storage, relative_path=place)
    write_list(folder, content)
    with pytest.raises(CheckpointsRefused, match="lists a file outside of it"):
        restored(tmp_path / "c")


@pytest.mark.parametrize("other", [Path, pickle.Unpickler, FileSystemWriter, SavePlan])
def test_only_records_and_enumerations_of_torch_are_made_from_a_list_of_shards(
    parts: TrainingParts, tmp_path: Path, other: type
) -> None:
    (folder,) = saved(parts, tmp_path / "c", 10)
    write_list(folder, None)
    module, name = "torch.distributed.checkpoint.filesystem", other.__name__
    (folder / ".metadata").write_bytes(f"c{module}\n{name}\n.".encode())
    with pytest.raises(CheckpointsRefused, match="expected only data"):
        restored(tmp_path / "c")


@pytest.mark.parametrize("content", [b"", b"|", pickle.dumps(["a"])[:-1], pickle.dumps(3)[:-3]])
def test_a_damaged_list_of_shards_is_refused(parts: TrainingParts, tmp_path: Path, content: bytes) -> None:
    (folder,) = saved(parts, tmp_path / "c", 10)
    write_list(folder, None)
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointsRefused, match="is damaged"):
        restored(tmp_path / "c")


def test_only_members_of_enumerations_are_looked_up_by_name() -> None:
    assert _member_of_enum(Severity, "WARNING") is Severity.WARNING
    for owner, name in ((Severity, "__class__"), (str, "format"), (math, "sqrt")):
        with pytest.raises(CheckpointsRefused, match="expected only data"):
            _member_of_enum(owner, name)
