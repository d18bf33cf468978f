"""Clients of tracking stores: one that answers or an error within seconds, run pages, quiet downloads.

Errors become one sentence without credentials: unavailable, refused, or run not found.

Guarantees: a result before the deadline, whatever the store does (MLflow itself retries for four minutes); nothing is
created, not even a missing SQLite file.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException, RestException

from mlflow_stability.errors import RunNotFoundError, StabilityError, TrackingError
from mlflow_stability.tracking.address import (
    absolute_uri,
    default_uri,
    is_sqlite,
    sqlite_file,
    strip_credentials,
    without_credentials,
)

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


DEADLINE_SECONDS = 10.0  # time for the first answer of a server
RETRY_SECONDS = 2.0  # a request that fails faster than this is tried once more
REMEMBER_SECONDS = 3.0
"""A server that answered is not checked again for this long: reading a thousand runs would ask a thousand times."""
LOCAL_UI = "http://127.0.0.1:5000"
_EXPERIMENT_ID = re.compile(r"[0-9]{1,18}")
_KINDS = {
    "http": "tracking server",
    "https": "tracking server",
    "postgresql": "database",
    "mysql": "database",
    "mssql": "database",
    "file": "folder of files",
    "databricks": "Databricks",
    "uc": "Databricks",
}
_answered_at: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class StoreCheck:
    uri: str  # without credentials
    kind: str  # `SQLite file`, `tracking server`, `database`, `folder of files`, `Databricks` or `plugin`
    answers: bool
    seconds: float = 0.0  # how long the answer took
    trouble: str = ""  # why it does not answer
    answered: str = ""  # what it answered instead, as the rest of a sentence
    exists: bool = True  # False if MLflow creates it at the first run


def mlflow_version() -> str:
    return str(mlflow.__version__)


def check_store(uri: str | None = None, deadline: float = 5.0) -> StoreCheck:
    """Check the store at `uri`, or the one that MLflow would use in this directory."""
    here = str(Path.cwd())
    uri = absolute_uri(uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(here), here)
    shown = strip_credentials(uri)
    kind = "SQLite file" if is_sqlite(uri) else _KINDS.get(uri.partition(":")[0].partition("+")[0], "plugin")
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        folder = next(folder for folder in file.parents if folder.exists())
        writable = os.access(folder, os.W_OK)
        return StoreCheck(shown, kind, writable, exists=False, trouble="" if writable else f"{folder} is not writable")
    errors: list[Exception] = []

    def ask() -> None:
        try:
            MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        except Exception as error:  # of the store, the driver or the network: whatever it is, it is the answer
            errors.append(error)

    began = time.monotonic()
    with _single_try(deadline):
        thread = threading.Thread(target=ask, daemon=True)  # a name server that hangs has no timeout
        thread.start()
        thread.join(deadline)
    trouble = _root_cause(errors[0]) if errors else ""
    if thread.is_alive():
        trouble = f"no answer within {deadline:.0f} s"
    instead = answered(errors[0]) if errors else ""
    return StoreCheck(shown, kind, not trouble, time.monotonic() - began, trouble, instead)


@contextmanager
def _single_try(deadline: float) -> Iterator[None]:
    """Let MLflow try once, not seven times in four minutes; it takes this from the environment only."""
    settings = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, int(deadline)))}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            _set_environment(name, value)


def _set_environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _root_cause(error: BaseException) -> str:
    """Return the innermost error: three libraries wrap a refused connection into a paragraph each."""
    innermost: BaseException = error
    while (cause := innermost.__cause__ or innermost.__context__) is not None:
        innermost = cause
    if isinstance(innermost, OSError) and innermost.strerror:
        return innermost.strerror
    return sentence(error).partition(" [SQL:")[0]


def answering_client(tracking_uri: str | None = None) -> MlflowClient:
    """Return a client of the store at `tracking_uri`, or of MLflow's default. Raises TrackingError if it is silent."""
    uri = absolute_uri(tracking_uri or mlflow.get_tracking_uri(), str(Path.cwd()))
    recently = uri in _answered_at and time.monotonic() - _answered_at[uri] < REMEMBER_SECONDS
    if uri.startswith(("http://", "https://")) and not recently:
        check = check_store(uri, DEADLINE_SECONDS)
        if not check.answers and not check.answered and check.seconds < RETRY_SECONDS:
            check = check_store(uri, DEADLINE_SECONDS)  # servers close connections that were idle for seconds
        if check.answered:
            end = "" if check.answered.endswith(("?", ".")) else "."
            raise TrackingError(f"The tracking server at {strip_credentials(uri)} {check.answered}{end}")
        if not check.answers:
            raise TrackingError(
                f"The tracking server at {strip_credentials(uri)} does not answer ({check.trouble}). Check "
                "that it runs and that the address is right; `mlflow-stability doctor` tests the connection."
            )
        _answered_at[uri] = time.monotonic()
    file = missing_database(uri)
    if file is not None:
        # MLflow would create it, which takes seven seconds and leaves an empty database behind.
        raise RunNotFoundError(
            f"No MLflow database at {file}. Pass --tracking-uri (tracking_uri=) or set MLFLOW_TRACKING_URI."
        )
    with store_trouble("open the tracking store"):
        return MlflowClient(tracking_uri=uri)


def store_address(tracking_uri: str | None = None) -> str:
    """Return where MLflow looks for runs, without credentials."""
    return strip_credentials(tracking_uri or mlflow.get_tracking_uri())


def missing_database(tracking_uri: str | None = None) -> Path | None:
    """Return the SQLite file that MLflow would have to create first; None if it exists, or for other stores."""
    file = sqlite_file(absolute_uri(tracking_uri or mlflow.get_tracking_uri(), str(Path.cwd())))
    return None if file is None or file.exists() else file


def experiment_by_id(client: MlflowClient, experiment_id: str) -> Experiment | None:
    if _EXPERIMENT_ID.fullmatch(experiment_id) is None:
        return None
    try:
        return client.get_experiment(experiment_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page of a run in MLflow's UI."""

    name: str
    status: str
    path: str  # path on the server; opens the overview in the layout for training
    command: str  # command that starts a UI on this store; empty if it is a server
    server: str  # the address before `path`

    @property
    def url(self) -> str:
        return self.server + self.path


def run_page(run_id: str, tracking_uri: str | None = None) -> RunPage:
    """Return the page of a run. Raises RunNotFoundError if there is no such run."""
    uri = tracking_uri or mlflow.get_tracking_uri()
    with store_trouble(f"read run {run_id}"):
        info = MlflowClient(tracking_uri=uri).get_run(run_id).info
    # New experiments open in the layout for language model applications unless the address has another one.
    path = f"/#/experiments/{info.experiment_id}/runs/{run_id}?workflowType=machine_learning"
    name, shown = info.run_name or run_id, strip_credentials(uri)
    if shown.startswith(("http://", "https://")):
        return RunPage(name, info.status, path, "", shown.rstrip("/"))
    scheme, _, file = shown.partition(":///")
    if is_sqlite(shown) and Path(file).parent == Path.cwd():
        shown = f"{scheme}:///{Path(file).name}"
    return RunPage(name, info.status, path, f"mlflow ui --backend-store-uri {shown}", LOCAL_UI)


class _ProgressBars:
    """How many downloads want no progress bar, and the environment before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hidden_by = 0
        self.before: str | None = None


_bars = _ProgressBars()


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Hide MLflow's progress bars, which only the environment can do; several threads may be in here at once."""
    name = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
    with _bars.lock:
        if not _bars.hidden_by:
            _bars.before = os.environ.get(name)
            os.environ[name] = "false"
        _bars.hidden_by += 1
    try:
        yield
    finally:
        with _bars.lock:
            _bars.hidden_by -= 1
            if not _bars.hidden_by:
                _set_environment(name, _bars.before)


@contextmanager
def bars_on_a_terminal() -> Iterator[None]:
    """Show MLflow's progress bars on a terminal only."""
    if sys.stderr is not None and sys.stderr.isatty():
        yield
        return
    with no_progress_bar():
        yield
