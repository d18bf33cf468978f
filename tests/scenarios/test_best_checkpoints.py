from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from scenarios.flying import flying
from torch import nn
from waiting import wait_until

import mlflow_stability
from mlflow_stability import RollbackPolicy
from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.stored_checkpoints import (
    CheckpointMeta,
    best_of,
    find,
    last_good_of,
    listing,
)
from mlflow_stability.recovery.state.state_copy import StateCopy

FIRST_HALF = [0.9, 0.5, 0.2, 0.3, 0.4, 0.6]
"""Of a metric that is logged every 60 steps, and best at step 180."""


class Sampler:
    """An object of the script with a state."""

    def __init__(self) -> None:
        self.drawn = 0

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "order": torch.arange(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


def built() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(
    metric: str,
    values: list[float],
    *,
    waits: bool = False,
    at_step: dict[int, Callable[[], None]] | None = None,
) -> dict[int, torch.Tensor]:
    """Train, and log a value every 60 steps; gives the weights at each.

    `waits`: for the disk after the next forward, and not only in the middle between two values.
    """
    model, optimizer = built()
    weights: dict[int, torch.Tensor] = {}
    for step in range(1, 60 * len(values) + 60):
        (at_step or {}).get(step, lambda: None)()
        inputs = torch.randn(16, 4)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        if (waits and step - 1 in weights) or (step % 60 == 30 and at_step is None):
            wait_until(is_written)  # a slow disk would leave out what comes next
        optimizer.step()
        if step % 60 == 0 and step // 60 <= len(values):
            weights[step] = model.state_dict()["weight"].clone()
            mlflow.log_metric(metric, values[step // 60 - 1], step=step)
    return weights


def is_written() -> bool:
    """Whether no checkpoint is on its way to the disk."""
    session = mlflow_stability.current_session()
    assert session is not None
    assert session._lifecycle is not None
    writer = session._lifecycle.control._states.writer
    return writer is None or not writer.is_busy


@pytest.fixture
def store(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    return sqlite_uri


@pytest.mark.parametrize(
    ("metric", "asked", "values"),
    [
        ("val_loss", {"best_by": "val_loss"}, FIRST_HALF),
        ("eval/loss", {"best_by": "val_loss"}, FIRST_HALF),
        ("accuracy", {"best_by": "accuracy", "best_mode": "max"}, [1 - value for value in FIRST_HALF]),
    ],
)
def test_the_best_state_by_a_metric_of_the_script_is_kept_and_restored(
    tmp_path: Path, store: str, metric: str, asked: dict[str, Any], values: list[float]
) -> None:
    policy = RollbackPolicy(max_rollbacks=0, rollback_checkpoint_interval=100_000, **asked)
    with mlflow.start_run(), flying(tmp_path, guard=False, rollback=policy):
        weights = train(metric, values)
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    metas = [item.meta for item in listing(directory) if item.meta is not None]
    assert [(point.step, round(point.value or 0.0, 6)) for point in metas] == [
        (step, round(values[step // 60 - 1], 6)) for step in (60, 120, 180)
    ]
    best = best_of(metas)
    assert best is not None
    assert (best.step, find(directory, "best").checkpoint.step) == (180, 180)
    model, optimizer = built()
    resumed = mlflow_stability.restore(model, optimizer, directory=directory, which="best")
    assert resumed.step == 180
    assert torch.equal(model.state_dict()["weight"], weights[180])


@pytest.mark.parametrize("waits", [False, True])
def test_a_validation_at_a_checkpoint_step_gives_that_checkpoint_its_value(
    tmp_path: Path, store: str, waits: bool
) -> None:
    """When the metric is heard, the checkpoint is on the disk, or may be on its way there."""
    policy = RollbackPolicy(max_rollbacks=0, rollback_checkpoint_interval=60, best_by="val_loss")
    with mlflow.start_run(), flying(tmp_path, guard=False, rollback=policy):
        weights = train("val_loss", FIRST_HALF, waits=waits)
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    metas = [item.meta for item in listing(directory) if item.meta is not None]
    assert [(point.step, point.value) for point in metas] == [
        (60, 0.9), (120, 0.5), (180, 0.2), (240, None), (300, None), (360, None)
    ]  # fmt: skip
    model, optimizer = built()
    assert mlflow_stability.restore(model, optimizer, directory=directory, which="best").step == 180
    assert torch.equal(model.state_dict()["weight"], weights[180])


def test_the_best_state_is_written_also_where_another_one_is_still_on_its_way(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, may_go = CheckpointStore.commit, threading.Event()

    def commit(self: CheckpointStore, copy: StateCopy, loss: float, value: float | None = None) -> CheckpointMeta:
        assert copy.step != 50 or may_go.wait(120)
        return slow(self, copy, loss, value)

    monkeypatch.setattr(CheckpointStore, "commit", commit)
    policy = RollbackPolicy(max_rollbacks=0, rollback_checkpoint_interval=50, best_by="val_loss")
    with mlflow.start_run(), flying(tmp_path, guard=False, rollback=policy):
        weights = train("val_loss", [0.9, 0.5, 0.7], at_step={125: may_go.set})
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    model, optimizer = built()
    assert find(directory, 50).checkpoint.step == 50
    assert mlflow_stability.restore(model, optimizer, directory=directory, which="best").step == 120
    assert torch.equal(model.state_dict()["weight"], weights[120])


def test_without_a_metric_the_loss_says_which_is_the_best(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=RollbackPolicy(rollback_checkpoint_interval=60, rollback_target="best")):
        model, optimizer = built()
        for _ in range(400):
            inputs = torch.randn(16, 4)
            optimizer.zero_grad()
            (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
        session = mlflow_stability.current_session()
        assert session is not None
        assert session.rollback()
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    metas = [item.meta for item in listing(directory) if item.meta is not None]
    best, last_good = best_of(metas), last_good_of(metas)
    assert best is not None
    assert last_good is not None
    assert best.rank == min(item.loss for item in metas if item.good)
    assert last_good.step == max(point.step for point in metas if point.good)


def test_the_state_of_an_object_of_the_script_is_saved_and_restored(tmp_path: Path) -> None:
    sampler = Sampler()
    policy = RollbackPolicy(rollback_checkpoint_interval=100, extra_state={"sampler": sampler})
    with flying(tmp_path, rollback=policy):
        model, optimizer = built()
        for _ in range(260):
            sampler.drawn += 1
            inputs = torch.randn(16, 4)
            optimizer.zero_grad()
            (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    fresh = Sampler()
    resumed = mlflow_stability.restore(*built(), directory=directory, extra_state={"sampler": fresh})
    assert fresh.drawn == resumed.step > 0
    left = mlflow_stability.restore(*built(), directory=directory)
    assert any("Extra state not restored: sampler" in message for message in left.messages)
    with pytest.raises(CheckpointsRefused, match=r"No extra state 'loader' in .*; it has sampler"):
        mlflow_stability.restore(*built(), directory=directory, extra_state={"loader": fresh})
