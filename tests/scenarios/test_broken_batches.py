"""The batch of a broken step stays on this machine unless the user asked to have it in the run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from probes.own_state import GeneratorAtDepth, HelperObject, SnapshotManager, made
from scenarios.delivering import end, watch
from scenarios.flying import flying
from scenarios.watching import batches, mse, tiny_model
from torch import Tensor
from torch.optim import SGD

from mlflow_stability import Options
from mlflow_stability.tracking.read.run_reader import read_run_history

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("blank_pictures")]
BROKEN = 7


def train(steps: int = 15) -> Tensor:
    """Gives the inputs of the batch that breaks."""
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    broken = torch.empty(0)
    for number, (inputs, targets) in enumerate(batches(steps), start=1):
        if number == BROKEN:
            inputs[0, 0] = math.nan
            broken = inputs
        optimizer.zero_grad()
        mse(model, (inputs, targets)).backward()
        optimizer.step()
    return broken


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["upload", True])
def test_its_tensors_are_in_the_run_only_if_asked(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, capture: bool | str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    watch(guard=True, silent=True, options=Options(capture_batch=capture))
    broken = train()
    end()
    client = MlflowClient(sqlite_uri)
    (run,) = client.search_runs(["0"])
    listed = [artifact.path for artifact in client.list_artifacts(run.info.run_id, "stability/batches")]
    (kept,) = tmp_path.glob(".mlflow-stability/batches/*/batch-*.pt")
    if capture is True:
        assert listed == []
        assert "stability.batches" not in read_run_history(run.info.run_id).tags
        return
    assert listed == ["stability/batches/recording-000-batch-000007.pt"]
    file = client.download_artifacts(run.info.run_id, listed[0], str(tmp_path))
    for path in (file, kept):
        (inputs,) = torch.load(path, weights_only=True).values()
        assert torch.allclose(inputs, broken, rtol=0.0, atol=0.0, equal_nan=True)
    assert kept.name == "batch-000007.pt"


@pytest.mark.slow
def test_a_batch_that_cannot_be_kept_is_reported_all_the_same(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    (journals / "batches").write_text("not a folder")
    with flying(tmp_path, guard=True, options=Options(capture_batch="upload")) as flown:
        train()
        assert flown.session.parts_off == {}
    (event,) = flown.events("broken_batch")
    assert "1 NaN" in event.message
    assert "could not be saved" in event.message


@pytest.mark.parametrize("kind", [GeneratorAtDepth, HelperObject])
def test_after_a_skipped_step_a_model_with_state_of_its_own_goes_on_as_without_us(
    tmp_path: Path, kind: type[SnapshotManager]
) -> None:
    def trained(guarded: bool) -> list[Tensor]:
        model = made(kind)
        optimizer = SGD(model.parameters(), lr=0.001)
        losses = []
        for step in range(1, 13):
            inputs = torch.full((4, 6), math.nan if step == BROKEN else 1.0 / step)
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            if step != BROKEN or guarded:  # without us the script skips it itself
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
        return [*losses, *(parameter.detach() for parameter in model.parameters())]

    bare = trained(guarded=False)
    with flying(tmp_path, guard=True) as flown:
        watched = trained(guarded=True)
    (event,) = flown.events("broken_batch")
    assert "The same batch is non-finite again" in event.message
    assert all(torch.allclose(*pair, rtol=0.0, atol=0.0, equal_nan=True) for pair in zip(bare, watched, strict=True))
