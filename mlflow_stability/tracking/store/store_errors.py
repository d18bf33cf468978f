"""Errors of tracking stores: three classes, and one sentence each.

In: exceptions of MLflow, its HTTP client or its database. Out: unavailable (retry later), refused (a retry does not
help) or run gone, and a sentence without credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException, RestException

from mlflow_stability.errors import RunNotFoundError, StabilityError, TrackingError
from mlflow_stability.tracking.store.address import strip_credentials, without_credentials

_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
_GONE = frozenset({"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"})
_FOLDER_IN_THE_WAY = (IsADirectoryError, NotADirectoryError)  # in a file store, where keys are paths
_LONGEST_SENTENCE = 300


class RefusedError(TrackingError):
    """The store understood, and will not take this."""


@contextmanager
def store_trouble(doing: str) -> Iterator[None]:
    """Turn every failure inside into one of ours; `doing` completes "could not …"."""
    try:
        yield
    except StabilityError:
        raise
    except MlflowException as error:
        message = f"Could not {doing}: {sentence(error)}"
        if error.error_code in _REFUSALS or isinstance(error.__context__, _FOLDER_IN_THE_WAY):
            raise RefusedError(message) from error
        if error.error_code in _GONE:
            raise RunNotFoundError(message) from error
        raise TrackingError(f"Could not {doing}: {_shut_out(error) or sentence(error)}") from error
    except Exception as error:  # requests, urllib3, sqlalchemy, botocore, a plugin of the user's: no common root
        raise TrackingError(f"Could not {doing}: {_shut_out(error) or sentence(error)}") from error


def sentence(error: BaseException) -> str:
    """What an exception says, in one line, without credentials."""
    text = " ".join(without_credentials(str(error) or type(error).__name__).split())
    return text if len(text) <= _LONGEST_SENTENCE else text[:_LONGEST_SENTENCE] + "…"


NOT_MLFLOW = "answers, but not as an MLflow server. Check the address: a login page or another service?"
_STATUS = re.compile(r"failed with error code (\d{3})|too many (\d{3}) error responses")
_NOT_JSON = "not in a valid JSON format"
_CREDENTIALS = (
    "check the credentials in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
)

_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_CERTIFICATE = "set MLFLOW_TRACKING_SERVER_CERT_PATH to a PEM file with its certificate, or with that of its authority"


def answered(error: BaseException) -> str:
    """What came instead of what was asked for, and what to do."""
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


def _shut_out(error: BaseException) -> str:
    """What to do where the server does not let us in; empty for any other error."""
    if _UNTRUSTED in str(error) or _status(error) in (401, 403):
        return f"the server {answered(error)}"
    return ""


def not_mlflow(uri: str) -> TrackingError:
    """What to raise about a server whose answer is well-formed and about something else than what was asked for."""
    return TrackingError(f"The tracking server at {strip_credentials(uri)} {NOT_MLFLOW}.")


def _status(error: BaseException) -> int:
    if isinstance(error, RestException):
        return int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    found = _STATUS.search(str(error)) if isinstance(error, MlflowException) else None
    return int(next(each for each in found.groups() if each)) if found is not None else 0
