"""Whatever the tracking server does, training goes on at its pace, one warning is given, and nothing is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from courier.processes import couriers_of
from courier.staging import bookkeeping
from faults.endings import Training
from mlflow import MlflowClient
from servers.troubled_server import TroubledServer
from waiting import wait_until

import mlflow_stability

pytestmark = pytest.mark.fault

STEPS = 120
# A blocked call to MLflow takes minutes; what these machines' other work does to a step takes less than this.
NO_STEP_WAITS = 2.0


@pytest.fixture
def run_id(rest_server: str) -> str:
    """A run of the test's own on the shared server."""
    return str(MlflowClient(tracking_uri=rest_server).create_run("0").info.run_id)


def watched_training(server: TroubledServer, run_id: str, folder: Path, exit_wait: float = 30.0) -> Training:
    environment = {"MLFLOW_RUN_ID": run_id, "MLFLOW_STABILITY_EXIT_WAIT": str(exit_wait)}
    return Training(folder, server.url, "normal", STEPS, 0.1, environment=environment)


def record_of(run_id: str, uri: str) -> pd.DataFrame:
    return mlflow_stability.load_run(run_id, tracking_uri=uri)


def all_arrived(training: Training, run_id: str, uri: str, within: float = 40.0) -> pd.DataFrame:
    wait_until(lambda: not training.journal.exists(), within)
    frame = record_of(run_id, uri)
    assert frame["step"].tolist() == list(range(1, STEPS + 1))
    assert frame["step_time"].max() < NO_STEP_WAITS
    return frame


def down_at_start(server: TroubledServer, training: Training) -> None:
    training.reach(90)
    server.mood = "up"


def down_in_the_middle(server: TroubledServer, training: Training) -> None:
    training.reach(40)
    server.mood = "down"
    training.reach(110)
    server.mood = "up"


def failing_in_the_middle(server: TroubledServer, training: Training) -> None:
    training.reach(40)
    server.mood = "failing"
    training.reach(110)
    server.mood = "up"


def slow_all_the_time(server: TroubledServer, training: Training) -> None:
    server.mood = "slow"


@pytest.mark.parametrize(
    ("at_first", "trouble"),
    [
        ("down", down_at_start),
        ("up", down_in_the_middle),
        ("up", failing_in_the_middle),
        ("slow", slow_all_the_time),
    ],
    ids=["down at start", "down in the middle", "answering 500", "slow"],
)
def test_nothing_is_lost_and_no_step_waits(
    at_first: str,
    trouble: Callable[[TroubledServer, Training], None],
    troubled_server: TroubledServer,
    rest_server: str,
    run_id: str,
    tmp_path: Path,
) -> None:
    troubled_server.mood = at_first
    troubled_server.slowness = 0.5
    training = watched_training(troubled_server, run_id, tmp_path)
    trouble(troubled_server, training)
    errors = training.end()
    all_arrived(training, run_id, rest_server)
    warnings = errors.count("No answer from the tracking server since")
    assert warnings <= 1
    beside = [line for line in errors.splitlines() if not re.search("Record(ing|ed) run |Report: ", line)]
    assert len(beside) <= 1, errors  # hundreds of retries are not the user's business
    if at_first == "down":
        assert warnings == 1


def test_a_server_that_is_away_at_the_end_gets_everything_when_it_is_back(
    troubled_server: TroubledServer, rest_server: str, run_id: str, tmp_path: Path
) -> None:
    training = watched_training(troubled_server, run_id, tmp_path, exit_wait=3)
    training.reach(100)
    troubled_server.mood = "down"
    began = time.monotonic()
    errors = training.end()
    assert time.monotonic() - began < 30
    assert re.search("Not delivered to MLflow yet after|Still on the way to MLflow after", errors), errors
    assert "mlflow-stability sync" in errors
    assert training.journal.exists()
    troubled_server.mood = "up"
    all_arrived(training, run_id, rest_server)
    tags = MlflowClient(tracking_uri=rest_server).get_run(run_id).data.tags
    assert tags["stability.ended"] == "finished"


def test_one_refused_metric_costs_only_itself(
    troubled_server: TroubledServer, rest_server: str, run_id: str, tmp_path: Path
) -> None:
    troubled_server.refused_metric = "stability/grad_norm"
    training = watched_training(troubled_server, run_id, tmp_path)
    training.end()
    frame = all_arrived(training, run_id, rest_server)
    assert frame["grad_norm"].notna().all()  # the full record has it all the same
    run = MlflowClient(tracking_uri=rest_server).get_run(run_id)
    assert "stability/grad_norm" not in run.data.metrics
    assert run.data.metrics["stability/loss"] == pytest.approx(frame["loss"].iloc[-1])
    assert "stability/grad_norm" in bookkeeping(run_id, rest_server)["refused"]


def test_credentials_of_the_tracking_uri_are_written_nowhere(
    troubled_server: TroubledServer, rest_server: str, run_id: str, tmp_path: Path
) -> None:
    secret = "hunter2-do-not-write-this"
    uri = troubled_server.url.replace("http://", f"http://someone:{secret}@")
    troubled_server.mood = "failing"  # errors are where secrets leak
    training = Training(
        tmp_path,
        uri,
        "normal",
        STEPS,
        0.05,
        environment={"MLFLOW_RUN_ID": run_id, "MLFLOW_STABILITY_EXIT_WAIT": "2"},
    )
    leaks: list[Path] = []
    leaked: list[str] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.2):
            for path in training.journal.rglob("*"):
                try:
                    if path.is_file() and secret.encode() in path.read_bytes():
                        leaks.append(path)
                        leaked.append(path.read_text())
                except OSError:
                    continue

    looking = threading.Thread(target=look)
    looking.start()
    errors = training.end()
    modes = {oct(path.stat().st_mode & 0o777) for path in training.journal.rglob("*") if path.exists()}
    troubled_server.mood = "up"
    all_arrived(training, run_id, rest_server)
    stop.set()
    looking.join()
    assert modes <= {"0o700", "0o600"}
    assert not leaks, leaked
    assert secret not in errors
    tags = MlflowClient(tracking_uri=rest_server).get_run(run_id).data.tags
    assert not [name for name, value in tags.items() if secret in value]


def test_many_attached_trainings_wait_for_a_dead_server_at_once(tmp_path: Path) -> None:
    count, wait = 3, 8.0
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("attached.py")), str(count), str(wait)],
        cwd=tmp_path,
        env={**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert wait <= float(done.stdout) < 2 * wait
    assert len(list((tmp_path / ".mlflow-stability").glob("*/*/journal"))) == count
    for path in (tmp_path / ".mlflow-stability").iterdir():
        for courier in couriers_of(int(path.name.split("-")[2])) if path.is_dir() else ():
            courier.kill()
