from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked.processes import python
from recovery.restorable import OPTIMIZERS, Training, bits
from torch import nn

from mlflow_stability.errors import CheckpointsRefused, RestoreRefused
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.resume import restore
from mlflow_stability.recovery.state.state_copy import copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts


def training() -> Training:
    made = Training.of(OPTIMIZERS["adamw foreach"])
    made.run(2)
    return made


def script(name: str, *arguments: str) -> dict[str, Any]:
    """Run a script of this folder in a process of its own; it prints one line of JSON."""
    root = Path(sys.modules["mlflow_stability"].__file__ or "").parent.parent
    done = subprocess.run(
        [python(), str(Path(__file__).parents[1] / name), *arguments],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    by_name: dict[str, Any] = json.loads(done.stdout)
    return by_name


@pytest.mark.slow
def test_a_new_process_continues_for_a_hundred_steps_bit_for_bit(tmp_path: Path) -> None:
    whole = script("resumable.py", "whole", str(tmp_path))
    resumed = script("resumable.py", "resumed", str(tmp_path))
    assert (whole["first"], resumed["first"]) == (1, 101)
    assert len(resumed["losses"]) == 100
    assert resumed["losses"] == whole["losses"]
    assert resumed["end"] == whole["end"]


@pytest.mark.fault
def test_after_two_hundred_kills_at_random_moments_the_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    result = script("checkpointing.py", str(tmp_path), "200")
    assert result["kills"] == 200
    assert result["damaged"] == 0
    assert result["written"] > 20  # it did not only fail to begin
    assert result["cut off while writing"] > 20


def saved(folder: Path, made: Training, step: int = 7) -> None:
    store = CheckpointStore(folder, "r")
    store.commit(copy_state(made.parts, step), 1.5)
    store.promote(step)
    store.close()


def test_resuming_returns_the_step_the_loss_and_the_folder(tmp_path: Path) -> None:
    made = training()
    saved(tmp_path, made)
    fresh = Training.of(OPTIMIZERS["adamw foreach"])
    resumed = restore(fresh.model, fresh.optimizers[0], directory=tmp_path)
    assert (resumed.step, resumed.loss, resumed.messages) == (7, 1.5, ())
    assert resumed.folder.name == "rollback_ckpt-000007-1.5000"
    assert bits(fresh) == bits(made)


def test_without_an_optimizer_weights_and_buffers_alone_are_restored(tmp_path: Path) -> None:
    made = training()
    saved(tmp_path, made)
    fresh, random = Training.of(OPTIMIZERS["adamw foreach"]), torch.get_rng_state()
    resumed = restore(fresh.model, None, directory=tmp_path)
    assert (resumed.step, resumed.loss, resumed.messages) == (7, 1.5, ())
    state, other = made.model.state_dict(), fresh.model.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    assert not fresh.optimizers[0].state
    assert torch.equal(torch.get_rng_state(), random)
    other_model = training().model
    other_model.head = nn.Linear(6, 2)
    with pytest.raises(RestoreRefused, match=r"head\.weight is \(1, 6\) in it and \(2, 6\) here"):
        restore(other_model, None, directory=tmp_path)


def test_models_and_optimizers_may_come_in_another_order(tmp_path: Path) -> None:
    def gan() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        models: list[nn.Module] = [nn.Linear(2, 3), nn.Linear(3, 1)]
        return models, [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]

    models, optimizers = gan()
    for model, optimizer in zip(models, optimizers, strict=True):
        model(torch.ones(1, model.in_features)).sum().backward()
        optimizer.step()
    store = CheckpointStore(tmp_path, "r")
    store.commit(copy_state(TrainingParts(tuple(optimizers), tuple(models)), 3), 1.0)
    others, their_optimizers = gan()
    restore(others[::-1], their_optimizers[::-1], directory=tmp_path)
    for item, other in zip(models, others, strict=True):
        assert torch.equal(item.weight, other.weight)
    for item, other in zip(optimizers, their_optimizers, strict=True):
        first, second = ([state["momentum_buffer"] for state in item.state.values()] for item in (item, other))
        assert all(map(torch.equal, first, second))


def test_a_wrapped_model_takes_over_the_state_of_a_plain_one(tmp_path: Path) -> None:
    made = training()
    saved(tmp_path, made)
    fresh = Training.of(OPTIMIZERS["adamw foreach"])
    restore(torch.compile(fresh.model), fresh.optimizers[0], directory=tmp_path)
    assert bits(fresh) == bits(made)


def test_a_model_of_another_shape_is_refused_and_nothing_is_half_loaded(tmp_path: Path) -> None:
    saved(tmp_path, training())
    other = training()
    other.model.head = nn.Linear(6, 2)
    other.optimizers = [torch.optim.AdamW(other.model.parameters())]
    before = bits(other)
    with pytest.raises(RestoreRefused, match=r"head\.weight is \(1, 6\) in it and \(2, 6\) here"):
        restore(other.model, other.optimizers[0], directory=tmp_path)
    assert bits(other) == before


def test_parts_that_were_not_restored_are_reported(tmp_path: Path) -> None:
    made = training()
    (optimizer,) = made.optimizers
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    optimizer.state[made.model.head.weight]["odd"] = object()
    scaler = torch.amp.GradScaler("cpu")
    store = CheckpointStore(tmp_path, "r")
    parts = TrainingParts((optimizer,), (made.model,), (schedule,), scaler)
    store.commit(copy_state(parts, 3), 1.0)
    fresh = Training.of(OPTIMIZERS["adamw foreach"])
    text = "\n".join(restore(fresh.model, fresh.optimizers[0], directory=tmp_path).messages)
    assert "1 schedulers saved, 0 given" in text
    assert "pass the loss scaler" in text
    assert "head.weight/odd: object" in text
    assert "No checkpoint is verified" in text


def test_the_local_directory_comes_first_and_then_what_is_fetched_of_the_run(tmp_path: Path) -> None:
    made, asked = training(), []
    saved(tmp_path / "uploaded", made, 5)

    def fetch(run_id: str, which: Any) -> Path:
        asked.append((run_id, which))
        return tmp_path / "uploaded"

    fresh = Training.of(OPTIMIZERS["adamw foreach"])
    arguments = {"run_id": "abc", "fetch": fetch}
    resumed = restore(fresh.model, fresh.optimizers[0], directory=tmp_path / "local", which="best", **arguments)
    assert (resumed.step, asked) == (5, [("abc", "best")])
    assert "Using the uploaded checkpoint instead" in resumed.messages[0]
    saved(tmp_path / "local", made, 9)
    assert restore(fresh.model, fresh.optimizers[0], directory=tmp_path / "local", **arguments).step == 9
    assert restore(fresh.model, fresh.optimizers[0], **arguments).step == 5
    with pytest.raises(CheckpointsRefused, match="pass `directory` or `run_id`"):
        restore(fresh.model, fresh.optimizers[0])
