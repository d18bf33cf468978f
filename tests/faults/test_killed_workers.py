"""A worker that is ended as soon as its training has returned: its run says how the training ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from courier.processes import couriers_of
from faults.endings import STARTS_WITHIN, Training
from waiting import wait_until

from mlflow_stability.journal.layout import session_folders
from mlflow_stability.tracking.read.run_reader import read_run_history

pytestmark = pytest.mark.fault

STEPS = 25


@pytest.mark.parametrize(
    ("outcome", "status", "detail"),
    [("finished", "FINISHED", ""), ("crashed", "FAILED", "ValueError: the data ran out")],
)
def test_the_courier_outlives_a_worker_whose_children_are_killed(
    outcome: str, status: str, detail: str, sqlite_uri: str, tmp_path: Path
) -> None:
    training = Training(tmp_path, sqlite_uri, outcome, STEPS, script="ray_like.py")
    training.end()
    run = training.delivered(STARTS_WITHIN)
    assert training.steps == STEPS
    assert (run.info.status, run.data.tags["stability.ended"]) == (status, outcome)
    assert read_run_history(run.info.run_id, sqlite_uri).outcome_detail == detail
    training.must_have_arrived_once()


def test_sync_knows_from_the_journal_alone_that_a_killed_worker_had_finished(sqlite_uri: str, tmp_path: Path) -> None:
    training = Training(tmp_path, sqlite_uri, "finished", STEPS, script="ray_like.py")
    training.reach(STEPS)
    wait_until(lambda: bool(session_folders(training.journal)), STARTS_WITHIN)
    (session,) = session_folders(training.journal)
    for courier in couriers_of(int(session.name.split("-")[2])):  # as with a container that ends with its driver
        courier.kill()
    training.end()
    command = [sys.executable, "-m", "mlflow_stability", "sync"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "delivered 1 recording" in finished.stdout
    run = training.run()
    assert (run.info.status, run.data.tags["stability.ended"]) == ("FINISHED", "finished")
    training.must_have_arrived_once()
