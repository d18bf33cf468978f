"""Gives a client of a tracking store that is known to answer, or says within seconds that it does not.

MLflow itself tries a dead server for four minutes, which is right for a training and wrong for a person who waits.
"""

from __future__ import annotations

from pathlib import Path

import mlflow
from mlflow import MlflowClient

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking.address import absolute_uri, sqlite_file, strip_credentials
from mlflow_stability.tracking.store_check import check_store
from mlflow_stability.tracking.store_trouble import store_trouble

DEADLINE = 10.0
"""Seconds that a server has for its first answer."""


def answering_client(tracking_uri: str | None = None) -> MlflowClient:
    """A client of the store at `tracking_uri`, or of MLflow's own default."""
    here = str(Path.cwd())
    uri = absolute_uri(tracking_uri or mlflow.get_tracking_uri(), here)
    if uri.startswith(("http://", "https://")):
        check = check_store(uri, DEADLINE)
        if check.answered:
            raise TrackingError(f"The tracking server at {strip_credentials(uri)} {_closed(check.answered)}")
        if not check.answers:
            raise TrackingError(
                f"The tracking server at {strip_credentials(uri)} does not answer ({check.trouble}). "
                "Is it running, and is the address right? `mlflow-stability doctor` looks closer."
            )
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        # MLflow would make it, which takes seven seconds and leaves an empty database behind.
        raise RunNotFoundError(
            f"There is no MLflow database at {file}. Pass --tracking-uri (tracking_uri=) or set MLFLOW_TRACKING_URI."
        )
    with store_trouble("open the tracking store"):
        return MlflowClient(tracking_uri=uri)


def _closed(sentence: str) -> str:
    return sentence if sentence.endswith(("?", ".")) else f"{sentence}."
