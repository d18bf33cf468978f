"""Makes the run of a recording that had none, exactly once.

In: where to, and the tags that tell which recording it is for. Out: a run id. Guarantees: after a kill between asking
the server and hearing its answer, `find_run` gives the run that was made, so that no second one is; after a kill while
MLflow makes a new database, the next try makes it anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from mlflow import MlflowClient
from mlflow.tracking.default_experiment.registry import get_experiment_id

from mlflow_stability.tracking.store.address import sqlite_file
from mlflow_stability.tracking.store.store_errors import store_trouble
from mlflow_stability.tracking.write.run_writer import RunWriter


class TrackingStore:
    """Where runs live."""

    def __init__(self, uri: str) -> None:
        file = sqlite_file(uri)
        with store_trouble("open the tracking store"):
            if file is not None and not file.exists():
                _make_database(file)
            self._client = MlflowClient(tracking_uri=uri)

    def writer(self, run_id: str) -> RunWriter:
        """The way into a run."""
        return RunWriter(self._client, run_id)

    def experiment(self, experiment_id: str | None) -> str:
        """The experiment that was asked for; else the one that MLflow itself would take."""
        known = experiment_id or os.environ.get("MLFLOW_EXPERIMENT_ID")
        if known:
            return known
        with store_trouble("find the experiment"):
            if name := os.environ.get("MLFLOW_EXPERIMENT_NAME"):
                found = self._client.get_experiment_by_name(name)
                return str(found.experiment_id) if found else self._client.create_experiment(name)
            return get_experiment_id() or "0"

    def create_run(self, experiment_id: str, tags: Mapping[str, str], started: float) -> str:
        """Start a run, as MLflow's own autologging would."""
        start = round((started or time.time()) * 1000)
        with store_trouble("create a run"):
            run = self._client.create_run(experiment_id, start_time=start, tags=dict(tags))
        return str(run.info.run_id)

    def find_run(self, experiment_id: str, tag: str, holding: str) -> str | None:
        """The run whose tag holds this text, if there is one."""
        wanted = f"tags.`{tag}` LIKE '%{holding}%'"
        with store_trouble("look for the run"):
            found = self._client.search_runs([experiment_id], filter_string=wanted, max_results=1)
        return str(found[0].info.run_id) if found else None


@lru_cache(maxsize=16)
def tracking_store(uri: str) -> TrackingStore:
    """The store of a tracking URI; opened once."""
    return TrackingStore(uri)


def _make_database(file: Path) -> None:
    """Make MLflow's database beside its place and put it there whole.

    MLflow itself takes seconds to fill a new file, table by table, and one that was killed half-way is never opened
    again by any MLflow.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{draft}").search_experiments(max_results=1)
        file.hardlink_to(draft)
    except FileExistsError:
        return  # somebody else made it meanwhile, and theirs counts
    finally:
        for each in file.parent.glob(f"{draft.name}*"):
            each.unlink(missing_ok=True)
