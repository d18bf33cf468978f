"""Gives a client of a tracking store that is known to answer, or says within seconds that it does not.

MLflow itself tries a dead server for four minutes, which is right for a training and wrong for a person who waits.
"""

from __future__ import annotations

import time
from pathlib import Path

import mlflow
from mlflow import MlflowClient

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking.address import absolute_uri, sqlite_file, strip_credentials
from mlflow_stability.tracking.store_check import check_store
from mlflow_stability.tracking.store_trouble import store_trouble

DEADLINE = 10.0
"""Seconds that a server has for its first answer."""
AT_ONCE = 2.0
"""What fails within so many seconds is tried once more."""
REMEMBERED = 3.0
"""Seconds for which a server that answered is not asked again: reading a thousand runs would ask a thousand times."""
_answered_at: dict[str, float] = {}


def answering_client(tracking_uri: str | None = None) -> MlflowClient:
    """A client of the store at `tracking_uri`, or of MLflow's own default."""
    here = str(Path.cwd())
    uri = absolute_uri(tracking_uri or mlflow.get_tracking_uri(), here)
    if uri.startswith(("http://", "https://")) and not _answered_lately(uri):
        check = check_store(uri, DEADLINE)
        if not check.answers and not check.answered and check.seconds < AT_ONCE:
            check = check_store(uri, DEADLINE)  # servers close connections that were idle for seconds: no trouble
        if check.answered:
            raise TrackingError(f"The tracking server at {strip_credentials(uri)} {_closed(check.answered)}")
        if not check.answers:
            raise TrackingError(
                f"The tracking server at {strip_credentials(uri)} does not answer ({check.trouble}). "
                "Is it running, and is the address right? `mlflow-stability doctor` looks closer."
            )
        _answered_at[uri] = time.monotonic()
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        # MLflow would make it, which takes seven seconds and leaves an empty database behind.
        raise RunNotFoundError(
            f"There is no MLflow database at {file}. Pass --tracking-uri (tracking_uri=) or set MLFLOW_TRACKING_URI."
        )
    with store_trouble("open the tracking store"):
        return MlflowClient(tracking_uri=uri)


def _answered_lately(uri: str) -> bool:
    return uri in _answered_at and time.monotonic() - _answered_at[uri] < REMEMBERED


def _closed(sentence: str) -> str:
    return sentence if sentence.endswith(("?", ".")) else f"{sentence}."
