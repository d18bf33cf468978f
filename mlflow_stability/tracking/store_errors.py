"""Turn errors of tracking stores into one sentence without credentials: unavailable, refused, or run not found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException, RestException

from mlflow_stability.errors import RunNotFoundError, StabilityError, TrackingError
from mlflow_stability.tracking.address import strip_credentials, without_credentials

NOT_MLFLOW = "answers, but not as an MLflow server. Check the address: a login page or another service?"
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
_NOT_FOUND = frozenset({"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"})
_FOLDER_IN_THE_WAY = (IsADirectoryError, NotADirectoryError)  # in a file store, where keys are paths
_LONGEST_SENTENCE = 300
_STATUS = re.compile(r"failed with error code (\d{3})|too many (\d{3}) error responses")
_NOT_JSON = "not in a valid JSON format"
_CREDENTIALS = (
    "check the credentials in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
)
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_CERTIFICATE = "set MLFLOW_TRACKING_SERVER_CERT_PATH to a PEM file with its certificate, or with that of its authority"


class RefusedError(TrackingError):
    """The store understood the request and refused it; a retry does not help."""


@contextmanager
def store_trouble(doing: str) -> Iterator[None]:
    """Turn every exception inside into a StabilityError; `doing` completes "could not …"."""
    try:
        yield
    except StabilityError:
        raise
    except Exception as error:  # of MLflow, requests, urllib3, sqlalchemy, botocore, a plugin: no common base class
        message = f"Could not {doing}: {sentence(error)}"
        code = error.error_code if isinstance(error, MlflowException) else ""
        if code in _REFUSALS or (code and isinstance(error.__context__, _FOLDER_IN_THE_WAY)):
            raise RefusedError(message) from error
        if code in _NOT_FOUND:
            raise RunNotFoundError(message) from error
        if _UNTRUSTED in str(error) or _status(error) in (401, 403):
            message = f"Could not {doing}: the server {answered(error)}"
        raise TrackingError(message) from error


def sentence(error: BaseException) -> str:
    """Return an exception's message in one line, without credentials."""
    text = " ".join(without_credentials(str(error) or type(error).__name__).split())
    return text if len(text) <= _LONGEST_SENTENCE else text[:_LONGEST_SENTENCE] + "…"


def answered(error: BaseException) -> str:
    """Return what a server answered instead, and what to do; empty if it did not answer."""
    if _UNTRUSTED in str(error):
        return f"has a certificate that is not trusted here: {_CERTIFICATE}"
    if _NOT_JSON in str(error):
        return NOT_MLFLOW
    status = _status(error)
    if status in (401, 403):
        return f"answers with {status}: {_CREDENTIALS}"
    if status == 404:
        return "answers with 404: no MLflow at this address. Check the path in it"
    if status == 429 or status >= 500:
        return f"answers with {status}: server error. Try again later"
    return f"answers with {status}" if status else ""


def not_mlflow(uri: str) -> TrackingError:
    """Return the error for a server that answers about something else than it was asked for."""
    return TrackingError(f"The tracking server at {strip_credentials(uri)} {NOT_MLFLOW}.")


def _status(error: BaseException) -> int:
    if isinstance(error, RestException):
        return int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    match = _STATUS.search(str(error)) if isinstance(error, MlflowException) else None
    return int(match[1] or match[2]) if match is not None else 0
