"""A machine without a network records, and `sync` delivers later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from courier.processes import couriers_of
from mlflow import MlflowClient
from scenarios.watching import batches, mse, tiny_model
from torch.optim import SGD

import mlflow_stability
from mlflow_stability.cli.main import run

pytestmark = pytest.mark.scenario


def train(steps: int) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.01)
    for batch in batches(steps):
        optimizer.zero_grad()
        mse(model, batch).backward()
        optimizer.step()


@pytest.mark.slow
def test_offline_nothing_is_sent_until_sync(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.chdir(tmp_path)
    before = couriers_of(os.getpid())  # an earlier test's may still be on their way out
    mlflow_stability.autolog(offline=True, strict=True)
    session = mlflow_stability.current_session()
    assert session is not None
    train(steps=30)
    assert set(couriers_of(os.getpid())) <= set(before)
    mlflow_stability.autolog(disable=True)
    assert set(couriers_of(os.getpid())) <= set(before)
    caplog.clear()
    assert not session.wait(1)
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == ["Recorded offline"]
    client = MlflowClient(sqlite_uri)
    assert list(client.search_runs(["0"])) == []
    assert run(["sync"]) == 0
    (delivered,) = client.search_runs(["0"])
    assert list(mlflow_stability.load_run(delivered.info.run_id, sqlite_uri)["step"]) == list(range(1, 31))
    assert delivered.info.status == "FINISHED"
