"""However a training ends, all of it arrives within ten seconds, once, and the run says how it ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from faults.endings import Training

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
def test_everything_arrives_and_the_run_tells_the_truth(
    how: str, outcome: str, status: str, detail: str, sqlite_uri: str, tmp_path: Path
) -> None:
    training = Training(tmp_path, sqlite_uri, how, STEPS)
    training.end()
    run = training.delivered()
    assert run.data.tags["stability.outcome"] == outcome
    assert run.info.status == status
    assert detail in run.data.tags.get("stability.outcome_detail", "")
    assert training.steps == STEPS
    training.must_have_arrived_once()


@pytest.mark.parametrize(
    ("how", "number", "outcome"),
    [("ctrl_c", signal.SIGINT, "interrupted"), ("sigterm", signal.SIGTERM, "killed")],
)
def test_a_signal_from_outside_is_told(
    how: str, number: signal.Signals, outcome: str, sqlite_uri: str, tmp_path: Path
) -> None:
    training = Training(tmp_path, sqlite_uri, how, STEPS)
    training.reach(STEPS)
    os.kill(training.process.pid, number)
    training.end()
    run = training.delivered()
    assert run.data.tags["stability.outcome"] == outcome
    assert run.info.status == "KILLED"
    training.must_have_arrived_once()


@pytest.mark.parametrize("how", ["exception", "exit", "kill"])
def test_a_run_that_the_script_started_tells_the_truth_too(how: str, sqlite_uri: str, tmp_path: Path) -> None:
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
    assert training.run().data.tags["stability.outcome"] == "finished"


def test_a_killed_process_group_leaves_a_whole_journal_that_sync_delivers_once(sqlite_uri: str, tmp_path: Path) -> None:
    training = Training(tmp_path, sqlite_uri, "wait", STEPS)
    training.reach(STEPS)
    kill_all_of(training)
    assert training.journal.exists()
    done = subprocess.run(
        ["mlflow-stability", "sync"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not training.journal.exists()
    training.must_have_arrived_once()
    assert training.run().data.tags["stability.outcome"] == "killed"


def test_the_next_start_delivers_what_a_killed_process_group_left(sqlite_uri: str, tmp_path: Path) -> None:
    first = Training(tmp_path, sqlite_uri, "wait", STEPS)
    first.reach(STEPS)
    kill_all_of(first)
    shutil.copytree(first.journal, tmp_path / "kept")
    second = Training(tmp_path, sqlite_uri, "normal", STEPS + 5)
    second.end()
    from mlflow import MlflowClient

    from faults.endings import wait_until

    assert wait_until(lambda: not second.journal.exists(), 20)
    runs = MlflowClient(tracking_uri=sqlite_uri).search_runs(["0"])
    assert sorted(run.data.tags["stability.outcome"] for run in runs) == ["finished", "killed"]
    assert sorted(run.data.tags["stability.last_step"] for run in runs) == [str(STEPS), str(STEPS + 5)]


def kill_all_of(training: Training) -> None:
    """What a batch system does at the end of a job: training, courier and all."""
    import psutil

    process = psutil.Process(training.process.pid)
    family = [process, *process.children(recursive=True)]
    assert len(family) >= 2  # the courier among them
    for each in family:
        each.kill()
    training.end()
