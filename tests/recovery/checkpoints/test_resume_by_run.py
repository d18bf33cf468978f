"""What a run keeps among its artifacts can be gone on from on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient

import mlflow_stability
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.state.state_copy import copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.tracking.run_files import RunCheckpoints


def a_training(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.AdamW(model.parameters())


@pytest.mark.parametrize("store", ["sqlite_uri", pytest.param("rest_server", marks=pytest.mark.slow)])
def test_a_run_whose_checkpoints_are_only_in_mlflow_is_resumed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = request.getfixturevalue(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = MlflowClient(tracking_uri=uri)
    run_id = str(client.create_run("0").info.run_id)
    model, optimizer = a_training(0)
    shelf = CheckpointStore(tmp_path / "elsewhere", run_id)
    weights = {}
    for step in (500, 1000):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        meta = shelf.commit(copy_state(TrainingParts((optimizer,), (model,)), step), 1.0)
        shelf.promote(step)
        weights[step] = model.weight.detach().clone()
        RunCheckpoints(client, run_id).upload(tmp_path / "elsewhere" / meta.name)
    for which, step in (("last_good", 1000), (700, 500)):
        other, theirs = a_training(1)
        restored = mlflow_stability.restore(other, theirs, run_id=run_id, which=which)
        assert restored.step == step
        assert torch.equal(other.weight, weights[step])
