"""Tells apart what can go wrong at the tracking store.

In: whatever MLflow, its HTTP client or its database raises. Out: one sentence without credentials, and one of three
kinds: the store is away (try again later), it refuses this very thing (trying again does not help), or the run is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException

from mlflow_stability.errors import RunNotFoundError, StabilityError, TrackingError
from mlflow_stability.tracking.address import without_credentials

_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
_GONE = frozenset({"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"})
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
        if error.error_code in _REFUSALS:
            raise RefusedError(message) from error
        if error.error_code in _GONE:
            raise RunNotFoundError(message) from error
        raise TrackingError(message) from error
    except Exception as error:  # requests, urllib3, sqlalchemy, botocore, a plugin of the user's: no common root
        raise TrackingError(f"Could not {doing}: {sentence(error)}") from error


def sentence(error: BaseException) -> str:
    """What an exception says, in one line, without credentials."""
    text = " ".join(without_credentials(str(error) or type(error).__name__).split())
    return text if len(text) <= _LONGEST_SENTENCE else text[:_LONGEST_SENTENCE] + "…"
