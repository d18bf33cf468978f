"""Several processes train or help to: one run, recorded by one of them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from forked import processes
from forked.processes import Process
from mlflow import MlflowClient
from servers.ports import free_port
from waiting import wait_until

import mlflow_stability
from mlflow_stability.courier.run_of_recording import recordings_in

pytestmark = [pytest.mark.scenario, pytest.mark.slow]
HERE = Path(__file__).parent
PACKAGE = Path(mlflow_stability.__file__).parent.parent
PATHS = os.pathsep.join(map(str, (PACKAGE, PACKAGE / "tests")))


def start(script: str, *arguments: str, uri: str, **environment: str) -> Process:
    around = {**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": PATHS, **environment}
    return processes.start(HERE / script, *arguments, environment=around)


def finish(process: Process) -> list[list[float]]:
    """The numbers that it printed, line by line."""
    text, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return [[float(word) for word in line.split()] for line in text.splitlines()]


def listeners(port: int) -> list[str]:
    """The command lines of the processes that listen at a port."""
    connections = [
        connection
        for connection in psutil.net_connections("tcp")
        if connection.laddr.port == port and connection.status == "LISTEN"
    ]
    return [" ".join(psutil.Process(process.pid).cmdline()) for process in connections]


def test_metrics_of_two_ranks_are_served_by_the_courier_of_rank_0_alone(sqlite_uri: str, tmp_path: Path) -> None:
    port = free_port()
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    arguments = "ddp_training.py", str(port), str(tmp_path / "seen")
    ranks = [start(*arguments, uri=sqlite_uri, RANK=str(rank), **together) for rank in range(2)]
    (courier,) = wait_until(lambda: [line for line in listeners(port) if "mlflow_stability.courier" in line], 150)
    assert f"-{ranks[0].pid}-" in courier, "the session of rank 0"
    (tmp_path / "seen").touch()
    printed = [item.communicate(timeout=240) for item in ranks]
    assert [item.returncode for item in ranks] == [0, 0], printed
    assert str(port) not in printed[0][1] + printed[1][1], "nothing is in its way"


def test_two_ranks_make_one_run_with_the_norm_of_the_averaged_gradient(sqlite_uri: str, tmp_path: Path) -> None:
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [start("ddp_training.py", uri=sqlite_uri, RANK=str(rank), **together) for rank in range(2)]
    truth, nothing = [finish(process) for process in ranks]
    assert nothing == []
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    record = mlflow_stability.load_run(run.info.run_id, tracking_uri=sqlite_uri)
    assert list(record["loss"]) == pytest.approx([loss for loss, _ in truth], rel=1e-5)
    assert list(record["grad_norm"]) == pytest.approx([norm for _, norm in truth], rel=1e-5)
    assert run.info.status == "FINISHED"
    assert not (tmp_path / ".mlflow-stability").exists()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader_record_nothing(sqlite_uri: str, tmp_path: Path, context: str) -> None:
    truth = finish(start("loader_training.py", context, uri=sqlite_uri))
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    record = mlflow_stability.load_run(run.info.run_id, tracking_uri=sqlite_uri)
    assert list(record["loss"]) == pytest.approx([loss for (loss,) in truth], rel=1e-5)
    assert len(recordings_in(run.data.tags)) == 1
    assert not (tmp_path / ".mlflow-stability").exists()
