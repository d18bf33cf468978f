"""Steps and times that a script logged as NumPy's integers, of which SQLite makes blobs."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from mlflow_stability.analysis.compare import compare
from mlflow_stability.analysis.diagnose import diagnose, history_of
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.tracking.read.run_record import whole_number


def logged(uri: str, key: str = "loss") -> str:
    """A run with 40 points, sent at once: a second batch is refused by MLflow itself."""
    client = MlflowClient(tracking_uri=uri)
    run_id = str(client.create_run("0").info.run_id)
    now = int(time.time() * 1000)
    losses = 0.1 + 3 * np.exp(-np.arange(40) / 10)
    points = [Metric(key, float(value), np.int64(now + at), np.int64(at)) for at, value in enumerate(losses)]
    client.log_batch(run_id, points)
    assert isinstance(client.get_metric_history(run_id, key)[0].step, bytes)  # else this tests nothing
    return run_id


def test_a_run_with_steps_of_numpy_is_read_and_diagnosed(sqlite_uri: str) -> None:
    run_id = logged(sqlite_uri)
    (metric,) = history_of(run_id, sqlite_uri).metrics
    assert metric.series.steps.tolist() == list(range(40))
    assert (np.diff(metric.series.times) > 0).all()
    assert diagnose(run_id, sqlite_uri).outcome == "healthy"


def test_runs_with_steps_of_numpy_are_compared(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):
        logged(sqlite_uri)
    assert len(compare(experiment="Default", tracking_uri=sqlite_uri).runs) == 2


def test_points_of_ours_with_steps_of_numpy_are_read(sqlite_uri: str) -> None:
    run_id = logged(sqlite_uri, "stability/loss")
    record = RunReader(run_id, sqlite_uri).record()
    assert record.step.tolist() == list(range(40))


@pytest.mark.parametrize("number", [0, 5, -1, 1_795_331_228_113])
def test_a_blob_is_the_number_that_numpy_wrote(number: int) -> None:
    assert whole_number(np.int64(number).tobytes()) == number
    assert whole_number(number) == number
