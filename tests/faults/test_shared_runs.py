"""Two processes may write into one run, and a run may be resumed: nothing is mixed up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from faults.endings import Training
from mlflow import MlflowClient
from waiting import wait_until

import mlflow_stability

pytestmark = pytest.mark.fault


def test_two_processes_at_once_in_one_run_are_recorded_separately(sqlite_uri: str, tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=sqlite_uri)
    run_id = client.create_run("0").info.run_id
    folders = [tmp_path / "one", tmp_path / "two"]
    trainings = []
    for folder in folders:
        folder.mkdir()
        trainings.append(Training(folder, sqlite_uri, "normal", 60, 0.05, environment={"MLFLOW_RUN_ID": run_id}))
    for training in trainings:
        training.end()
    assert all(wait_until(lambda item=item: not item.journal.exists(), 15) for item in trainings)
    frame = mlflow_stability.load_run(run_id, tracking_uri=sqlite_uri)
    assert sorted(frame["recording"].unique()) == [0, 1]
    for _, recording in frame.groupby("recording"):
        assert recording["step"].is_monotonic_increasing
        assert len(recording) == 60
        assert recording["loss"].notna().all()
    assert len(client.search_runs(["0"])) == 1


def test_a_resumed_run_continues_after_its_last_step(sqlite_uri: str, tmp_path: Path) -> None:
    first = Training(tmp_path, sqlite_uri, "kill", 20)
    first.end()
    run_id = first.delivered().info.run_id
    second = Training(tmp_path, sqlite_uri, "normal", 15, environment={"MLFLOW_RUN_ID": run_id})
    second.end()
    run = second.delivered()
    frame = mlflow_stability.load_run(run_id, tracking_uri=sqlite_uri)
    assert frame["step"].tolist() == list(range(1, 36))
    assert frame["recording"].tolist() == [0] * 20 + [1] * 15
    history = MlflowClient(tracking_uri=sqlite_uri).get_metric_history(run_id, "stability/loss")
    steps = [point.step for point in sorted(history, key=lambda point: point.timestamp)]
    assert steps == sorted(set(steps))
    assert run.data.tags["stability.ended"] == "finished"
    assert run.info.status == "FINISHED"


def test_a_run_resumed_by_the_script_continues_its_step_count(sqlite_uri: str, tmp_path: Path) -> None:
    first = Training(tmp_path, sqlite_uri, "normal", 12)
    first.end()
    run_id = first.delivered().info.run_id
    second = Training(tmp_path, sqlite_uri, "normal", 8, environment={"OWN_RUN": "1", "MLFLOW_RUN_ID": run_id})
    second.end()
    second.delivered()
    time.sleep(0.1)
    assert mlflow_stability.load_run(run_id, tracking_uri=sqlite_uri)["step"].tolist() == list(range(1, 21))
