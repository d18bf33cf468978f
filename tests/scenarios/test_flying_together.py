"""Several processes train together: what one skips all skip, and going back is one return for all of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from mlflow import MlflowClient
from scenarios.test_several_processes import finish, free_port, start

import mlflow_stability

pytestmark = pytest.mark.scenario


def both(trouble: str, uri: str, folder: Path) -> list[list[list[float]]]:
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [
        start("ddp_flight.py", trouble, str(folder / "journals"), uri=uri, RANK=str(rank), **together)
        for rank in range(2)
    ]
    return [finish(process) for process in ranks]


def weights(rows: list[list[float]]) -> list[float]:
    return [row[1] for row in rows]


def test_a_nan_on_one_rank_is_skipped_on_both(sqlite_uri: str, tmp_path: Path) -> None:
    first, second = both("nan", sqlite_uri, tmp_path)
    assert weights(first) == weights(second)
    same = [row[0] for before, row in itertools.pairwise(first) if before[1] == row[1]]
    assert same == [150.0]
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    record = mlflow_stability.load_run(run.info.run_id, tracking_uri=sqlite_uri)
    assert list(record["skipped_steps"])[-1] == 1


def test_a_return_is_one_for_both(sqlite_uri: str, tmp_path: Path) -> None:
    first, second = both("jump", sqlite_uri, tmp_path)
    assert weights(first) == weights(second)
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    record = mlflow_stability.load_run(run.info.run_id, tracking_uri=sqlite_uri)
    assert max(record["rollbacks"].dropna()) >= 1
    assert sum(row[2] for row in first[-20:]) / 20 < 0.1


def test_a_guard_that_fails_on_one_rank_is_off_on_both_and_training_goes_on(sqlite_uri: str, tmp_path: Path) -> None:
    first, second = both("fail", sqlite_uri, tmp_path)
    assert len(first) == 260
    assert weights(first) == weights(second)
