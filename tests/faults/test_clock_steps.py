"""A wall clock that is set while a training runs changes nothing: not who is alive, and not what arrives."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from faults.clock import HOUR, set_clock
from faults.endings import Training
from waiting import wait_until

from mlflow_stability.courier.progress import read_page
from mlflow_stability.journal.layout import STATUS, session_folders

pytestmark = pytest.mark.fault

STEPS = 40


@pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["forward", "back"])
def test_a_clock_that_is_set_ends_no_training_that_runs(seconds: int, sqlite_uri: str, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode and os.environ.get("CI") != "true":
        pytest.skip("needs the right to make a mount namespace")
    training = Training(tmp_path, sqlite_uri, "normal", STEPS, 0.5, before=["unshare", "-m"])
    training.reach(5)
    wait_until(lambda: courier_state(training) == "idle", 60)
    set_clock(training.process.pid, seconds, tmp_path)
    time.sleep(3)  # the courier looks twice a second whether the training lives
    assert training.process.poll() is None
    assert list(training.journal.rglob("journal")), "the journal of a living training was removed"
    training.end()
    run = training.delivered()
    assert run.info.status == "FINISHED"
    assert training.steps == STEPS
    training.must_have_arrived_once()


def courier_state(training: Training) -> str:
    return "".join(str(read_page(folder / STATUS).get("state")) for folder in session_folders(training.journal))
