"""However a training ends, all of it arrives within ten seconds, once, and the run says how it ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from courier.processes import couriers_of
from faults.endings import Training
from mlflow import MlflowClient
from waiting import wait_until

from mlflow_stability.tracking.read.run_reader import read_run_history

pytestmark = pytest.mark.fault

STEPS = 25


@pytest.mark.parametrize(
    ("how", "outcome", "status", "detail"),
    [
        ("normal", "finished", "FINISHED", ""),
        ("exception", "crashed", "FAILED", "ValueError: the data ran out"),
        ("exit", "exited", "FAILED", "sys.exit(3)"),
        ("os_exit", "killed", "KILLED", "os._exit"),
        ("kill", "killed", "KILLED", "killed by a signal"),
        ("out_of_memory", "out_of_memory", "FAILED", "memory"),
    ],
)
def test_everything_arrives_and_the_run_has_the_right_status(
    how: str, outcome: str, status: str, detail: str, sqlite_uri: str, tmp_path: Path
) -> None:
    training = Training(tmp_path, sqlite_uri, how, STEPS)
    training.end()
    run = training.delivered()
    assert run.data.tags["stability.ended"] == outcome
    assert run.info.status == status
    assert detail in read_run_history(run.info.run_id, sqlite_uri).outcome_detail
    assert training.steps == STEPS
    training.must_have_arrived_once()


@pytest.mark.parametrize(
    ("method", "how", "outcome", "status", "detail"),
    [
        ("spawn", "normal", "finished", "FINISHED", ""),
        ("fork", "exception", "crashed", "FAILED", "ValueError: the data ran out"),
    ],
)
def test_a_child_of_multiprocessing_has_delivered_everything_when_it_ends(
    method: str, how: str, outcome: str, status: str, detail: str, sqlite_uri: str, tmp_path: Path
) -> None:
    training = Training(tmp_path, sqlite_uri, method, how, STEPS, script="in_a_child.py")
    training.end()
    run = training.delivered()
    assert (run.info.status, run.data.tags["stability.ended"]) == (status, outcome)
    assert detail in read_run_history(run.info.run_id, sqlite_uri).outcome_detail
    training.must_have_arrived_once()


@pytest.mark.parametrize(
    ("how", "number", "outcome"),
    [("ctrl_c", signal.SIGINT, "interrupted"), ("sigterm", signal.SIGTERM, "killed")],
)
def test_a_signal_from_outside_is_recorded_as_the_end_of_the_training(
    how: str, number: signal.Signals, outcome: str, sqlite_uri: str, tmp_path: Path
) -> None:
    training = Training(tmp_path, sqlite_uri, how, STEPS)
    training.reach(STEPS)
    os.kill(training.process.pid, number)
    training.end()
    run = training.delivered()
    assert run.data.tags["stability.ended"] == outcome
    assert run.info.status == "KILLED"
    training.must_have_arrived_once()


@pytest.mark.parametrize("how", ["exception", "kill"])
def test_a_run_started_by_the_script_has_the_right_status_too(how: str, sqlite_uri: str, tmp_path: Path) -> None:
    # MLflow by itself leaves a killed run RUNNING for ever, and calls one FINISHED that ended in an exception.
    training = Training(tmp_path, sqlite_uri, how, STEPS, environment={"OWN_RUN": "1"})
    training.end()
    run = training.delivered()
    assert run.info.status == ("KILLED" if how == "kill" else "FAILED")
    assert "mlflow.autologging" not in run.data.tags
    training.must_have_arrived_once()


def test_the_first_process_of_a_container_has_delivered_everything_before_it_ends(
    sqlite_uri: str, tmp_path: Path
) -> None:
    if subprocess.run(["unshare", "-pf", "true"], check=False).returncode and os.environ.get("CI") != "true":
        pytest.skip("needs the right to make a process namespace")
    training = Training(tmp_path, sqlite_uri, "normal", STEPS, before=["unshare", "-pf", "--mount-proc"])
    training.end()
    # When PID 1 is gone the kernel has killed all beside it: nothing more can arrive from here on.
    training.must_have_arrived_once()
    assert training.run().data.tags["stability.ended"] == "finished"


def test_a_killed_process_group_leaves_a_whole_journal_that_sync_delivers_once(sqlite_uri: str, tmp_path: Path) -> None:
    training = Training(tmp_path, sqlite_uri, "wait", STEPS)
    training.reach(STEPS)
    kill_all_of(training)
    assert training.journal.exists()
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_stability", "sync"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not training.journal.exists()
    training.must_have_arrived_once()
    assert training.run().data.tags["stability.ended"] == "killed"


@pytest.mark.parametrize("given", [True, False], ids=["a named store", "the default store"])
def test_the_next_start_delivers_what_a_killed_process_group_left_while_it_trains(
    given: bool, sqlite_uri: str, tmp_path: Path
) -> None:
    if not given:  # MLflow's own default
        shutil.copy(tmp_path / "store" / "mlflow.db", tmp_path / "mlflow.db")
        sqlite_uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    environment = {} if given else {"MLFLOW_TRACKING_URI": ""}
    first = Training(tmp_path, sqlite_uri, "wait", STEPS, environment=environment)
    first.reach(STEPS)
    kill_all_of(first)
    second = Training(tmp_path, sqlite_uri, "wait", STEPS + 5, environment=environment)
    second.reach(STEPS + 5)
    client = MlflowClient(tracking_uri=sqlite_uri)
    wait_until(lambda: outcomes(client) == {str(STEPS): "killed"}, 30)
    second.process.kill()
    second.end()
    wait_until(lambda: not second.journal.exists(), 20)
    assert outcomes(client) == {str(STEPS): "killed", str(STEPS + 5): "killed"}
    assert len(client.search_runs(["0"])) == 2


def outcomes(client: MlflowClient) -> dict[str, str]:
    """How the runs ended that have, by their last step."""
    runs = [run.data.tags for run in client.search_runs(["0"])]
    return {tags["mlflow.stability.last_step"]: tags["stability.ended"] for tags in runs if "stability.ended" in tags}


def kill_all_of(training: Training) -> None:
    """What a batch system does at the end of a job: training, courier and all."""
    process = psutil.Process(training.process.pid)
    couriers = couriers_of(process.pid)
    assert couriers
    for item in [process, *process.children(recursive=True), *couriers]:
        item.kill()
    training.end()
