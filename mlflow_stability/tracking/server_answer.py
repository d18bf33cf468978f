"""Puts into words what a server answered that is no MLflow server in good order.

In: the exception in which MLflow's client wraps the answer. Out: the rest of a sentence that begins with the server's
name; empty where nothing was answered at all.
"""

from __future__ import annotations

import re

from mlflow.exceptions import MlflowException, RestException

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.address import strip_credentials

NOT_MLFLOW = "answers, but not as an MLflow server. Is it a login page or another service? Look at the address"
_STATUS = re.compile(r"failed with error code (\d{3})|too many (\d{3}) error responses")
_NOT_JSON = "not in a valid JSON format"
_CREDENTIALS = (
    "are credentials missing or wrong? They are MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
    "MLFLOW_TRACKING_TOKEN"
)


def answered(error: BaseException) -> str:
    """What came instead of what was asked for, and what to do."""
    if _NOT_JSON in str(error):
        return NOT_MLFLOW
    status = _status(error)
    if status in (401, 403):
        return f"answers with {status}: {_CREDENTIALS}"
    if status == 404:
        return "answers with 404: there is no MLflow at this address. Is a path missing in it, or one too many?"
    if status == 429 or status >= 500:
        return f"answers with {status}: it is up, but in trouble. Try again later"
    return f"answers with {status}" if status else ""


def not_mlflow(uri: str) -> TrackingError:
    """What to raise about a server whose answer is well-formed and about something else than what was asked for."""
    return TrackingError(f"The tracking server at {strip_credentials(uri)} {NOT_MLFLOW}.")


def _status(error: BaseException) -> int:
    if isinstance(error, RestException):
        return int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    found = _STATUS.search(str(error)) if isinstance(error, MlflowException) else None
    return int(next(each for each in found.groups() if each)) if found is not None else 0
