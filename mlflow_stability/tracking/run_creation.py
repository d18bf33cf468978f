"""Makes the run of a recording that had none, exactly once.

In: where to, and the tags that tell which recording it is for. Out: a run id. Promised: after a kill between asking
the server and hearing its answer, `find_run` gives the run that was made, so that no second one is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache

from mlflow import MlflowClient
from mlflow.tracking.default_experiment.registry import get_experiment_id

from mlflow_stability.tracking.store_trouble import store_trouble


@lru_cache(maxsize=16)
def client_of(uri: str) -> MlflowClient:
    """The client for a tracking URI."""
    with store_trouble("open the tracking store"):
        return MlflowClient(tracking_uri=uri)


def experiment_of(client: MlflowClient, experiment_id: str | None) -> str:
    """The experiment that was asked for; else the one that MLflow itself would take."""
    known = experiment_id or os.environ.get("MLFLOW_EXPERIMENT_ID")
    if known:
        return known
    with store_trouble("find the experiment"):
        if name := os.environ.get("MLFLOW_EXPERIMENT_NAME"):
            found = client.get_experiment_by_name(name)
            return str(found.experiment_id) if found else client.create_experiment(name)
        return get_experiment_id() or "0"


def create_run(client: MlflowClient, experiment_id: str, tags: Mapping[str, str], started: float) -> str:
    """Start a run, as MLflow's own autologging would."""
    with store_trouble("create a run"):
        run = client.create_run(experiment_id, start_time=round((started or time.time()) * 1000), tags=dict(tags))
    return str(run.info.run_id)


def find_run(client: MlflowClient, experiment_id: str, tag: str, holding: str) -> str | None:
    """The run whose tag holds this text, if there is one."""
    with store_trouble("look for the run"):
        found = client.search_runs([experiment_id], filter_string=f"tags.`{tag}` LIKE '%{holding}%'", max_results=1)
    return str(found[0].info.run_id) if found else None
