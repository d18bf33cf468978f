"""Starts trainings as processes of their own that record to one store, and waits for them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forked.processes import python
from mlflow import MlflowClient
from mlflow.entities import Run
from waiting import wait_until

import mlflow_stability
from mlflow_stability.journal.layout import session_folders

SCRIPT = Path(__file__).with_name("train.py")


@dataclass(frozen=True)
class Ended:
    """A training that has ended."""

    folder: Path
    code: int
    cpu: float
    """CPU milliseconds of its mean step."""
    median: float
    """Milliseconds of its median step."""
    longest: float
    """Milliseconds of its longest one."""
    errors: str


def run_trainings(
    folder: Path,
    environments: Sequence[Mapping[str, str]],
    steps: int,
    seconds_a_step: float = 0.0,
    patience: float = 250.0,
) -> list[Ended]:
    """Run one for each environment, all at once, each in a directory of its own, until all has been delivered."""
    started = []
    for number, environment in enumerate(environments):
        own = folder / f"training-{number}"
        own.mkdir(parents=True)
        command = [python(), str(SCRIPT), str(steps), str(seconds_a_step)]
        process = subprocess.Popen(
            command,
            cwd=own,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append((own, process))
    ended = []
    for own, process in started:
        text, errors = process.communicate(timeout=patience)
        took = map(float, text.split() or 3 * ["nan"])
        ended.append(Ended(own, process.returncode, *took, errors))
    # Couriers outlive their trainings where a server is slow.
    wait_until(lambda: not [item.folder for item in ended if _sessions(item.folder)], patience)
    return ended


def _sessions(folder: Path) -> list[Path]:
    return session_folders(folder / ".mlflow-stability")


def runs_of(uri: str, experiment: str = "Default") -> list[Run]:
    """All runs of an experiment."""
    client = MlflowClient(tracking_uri=uri)
    result = client.get_experiment_by_name(experiment)
    assert result is not None
    return list(client.search_runs([result.experiment_id], max_results=1000))


def must_have_arrived_once(run: Run, uri: str, steps: int) -> None:
    """Every step is in the record, once; metric tables have no point twice; the process ended well."""
    run_id = run.info.run_id
    assert mlflow_stability.load_run(run_id, tracking_uri=uri)["step"].tolist() == list(range(1, steps + 1))
    history = [point.step for point in MlflowClient(tracking_uri=uri).get_metric_history(run_id, "stability/loss")]
    assert sorted(set(history)) == sorted(history)
    assert max(history) == steps
    assert run.data.tags["stability.ended"] == "finished"
    assert run.info.status == "FINISHED"
