"""A job that torchrun starts again goes on in the same run, from its last checkpoint; the run says which rank died."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from forked.processes import python
from mlflow import MlflowClient
from scenarios import restarted_training
from scenarios.restarted_training import CHECKPOINT, DIES_AT, STEPS

import mlflow_stability
from mlflow_stability.courier.run_of_recording import recordings_in
from mlflow_stability.kinds.reported.ranks import JobRestarted, RankDied

pytestmark = [pytest.mark.scenario, pytest.mark.slow]
ROOT = Path(mlflow_stability.__file__).parent.parent


@pytest.mark.parametrize("way", ["plain", "sharded"])
def test_a_restarted_job_goes_on_in_the_same_run_which_says_which_rank_died(
    sqlite_uri: str, tmp_path: Path, way: str
) -> None:
    command = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", str(restarted_training.__file__)]
    done = subprocess.run(
        [python(), "-m", "torch.distributed.run", *command, way, str(tmp_path / "journals")],
        env={
            **os.environ,
            "MLFLOW_TRACKING_URI": sqlite_uri,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # gloo itself cannot be restarted on a store that is kept
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"begins behind step {CHECKPOINT}") == 2, done.stdout
    assert f"continues from its checkpoint of step {CHECKPOINT}" in done.stderr
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    assert run.info.status == "FINISHED"
    attempts = recordings_in(run.data.tags)
    steps = [(attempt.first_step, attempt.last_step) for attempt in attempts.values()]
    assert steps == [(1, DIES_AT), (DIES_AT + 1, DIES_AT + STEPS - CHECKPOINT)]
    losses = mlflow_stability.load_run(run.info.run_id, tracking_uri=sqlite_uri)["loss"]
    assert len(losses) == DIES_AT + STEPS - CHECKPOINT
    assert run.data.tags["stability.verdict"] == "healthy"
    diagnosis = mlflow_stability.diagnose(run.info.run_id, tracking_uri=sqlite_uri)
    (died,) = [finding for finding in diagnosis.findings if finding.kind == RankDied.kind]
    assert died.start == DIES_AT
    assert died.message.startswith(f"Rank 1 ({socket.gethostname()}) ended first: after step {DIES_AT}, at ")
    (again,) = [finding for finding in diagnosis.findings if finding.kind == JobRestarted.kind]
    assert again.start == DIES_AT + 1
    assert again.message.startswith("Attempt 2 of the job")
