"""Adds reports to a run, or a comparison to an experiment as a run of its own.

In: a run id or experiment, and files. Out: artifacts in `stability/`, and where they are. Guarantees: a report of the
same name is replaced; status and times of the run stay; comparison runs are marked, so that they are not compared as
trainings, and are never left running.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow_stability.errors import StabilityError
from mlflow_stability.tracking.store.reachable_client import answering_client, experiment_by_id
from mlflow_stability.tracking.store.store_errors import store_trouble
from mlflow_stability.tracking.tag_names import COMPARISON

REPORT_FOLDER = "stability"


def log_report(run_id: str, tracking_uri: str | None, files: Mapping[str, str]) -> Path | None:
    """Write each text into the run, under its file name; the folder they are in, where this machine has it."""
    client = answering_client(tracking_uri)
    with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
        for name, text in files.items():
            file = Path(room, name)
            file.write_text(text, encoding="utf-8")
            with store_trouble(f"add {name} to run {run_id}"):
                client.log_artifact(run_id, str(file), REPORT_FOLDER)
    with store_trouble(f"read run {run_id}"):
        root = client.get_run(run_id).info.artifact_uri
    parts = urlsplit(root)
    if parts.scheme:
        return Path(unquote(parts.path), REPORT_FOLDER) if parts.scheme == "file" else None
    return Path(root, REPORT_FOLDER)


NAME = "stability comparison"


def log_comparison(experiment: str, tracking_uri: str | None, files: Mapping[str, str], summary: str) -> str:
    """Write each text into a new run of the experiment, under its file name."""
    client = answering_client(tracking_uri)
    with store_trouble(f"add a run to experiment {experiment}"):
        found = client.get_experiment_by_name(experiment) or experiment_by_id(client, experiment)
        experiment_id = client.create_experiment(experiment) if found is None else found.experiment_id
        tags = {COMPARISON: "true", "mlflow.note.content": summary}
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
