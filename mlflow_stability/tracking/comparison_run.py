"""Keeps a comparison in an experiment, as a run of its own.

In: the experiment and finished reports. Out: the id of a run that holds them. Promised: the run is marked, so that it
is not taken for a training when the experiment is compared again; one that could not be filled is not left running.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from mlflow_stability.errors import StabilityError
from mlflow_stability.tracking.impatience import answering_client
from mlflow_stability.tracking.run_report import log_report
from mlflow_stability.tracking.store_trouble import store_trouble

COMPARISON_TAG = "stability.comparison"
NAME = "stability comparison"


def log_comparison(experiment: str, tracking_uri: str | None, files: Mapping[str, str], summary: str) -> str:
    """Write each text into a new run of the experiment, under its file name."""
    client = answering_client(tracking_uri)
    with store_trouble(f"add a run to experiment {experiment}"):
        found = client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found is not None else experiment
        if found is None and not experiment.isdigit():
            experiment_id = client.create_experiment(experiment)
        tags = {COMPARISON_TAG: "true", "mlflow.note.content": summary}
        run_id = str(client.create_run(experiment_id, tags=tags, run_name=NAME).info.run_id)
    try:
        log_report(run_id, tracking_uri, files)
    except BaseException:
        with suppress(StabilityError), store_trouble(f"finish run {run_id}"):
            answering_client(tracking_uri).set_terminated(run_id, "FAILED")
        raise
    with store_trouble(f"finish run {run_id}"):
        client.set_terminated(run_id)
    return run_id
