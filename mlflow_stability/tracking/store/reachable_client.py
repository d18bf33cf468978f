"""A client of a tracking store that answers, or an error within seconds.

In: a tracking URI. Out: a client; what kind of store it is, and whether it answers; an experiment by its id.
Guarantees: a result before the deadline, whatever the store does (MLflow itself retries for four minutes); nothing is
created, not even a missing SQLite file.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking.store.address import absolute_uri, default_uri, is_sqlite, sqlite_file, strip_credentials
from mlflow_stability.tracking.store.store_errors import answered, sentence, store_trouble

_EXPERIMENT_ID = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """What a store answered."""

    uri: str
    """Without credentials."""
    kind: str
    """`SQLite file`, `tracking server`, `database`, `folder of files`, `Databricks` or `plugin`."""
    answers: bool
    seconds: float = 0.0
    """How long it took."""
    trouble: str = ""
    """Why it does not answer; empty while it does."""
    answered: str = ""
    """What came instead of an answer to the question, as the rest of a sentence; empty where nothing did."""
    exists: bool = True
    """False where MLflow will make it at the first run."""


def mlflow_version() -> str:
    """The MLflow that is installed."""
    return str(mlflow.__version__)


def check_store(uri: str | None = None, deadline: float = 5.0) -> StoreCheck:
    """Ask the store at `uri`, or the one that MLflow would take in this directory."""
    here = str(Path.cwd())
    uri = absolute_uri(uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(here), here)
    shown, kind = strip_credentials(uri), _kind(uri)
    folder = _not_made_yet(uri)
    if folder is not None:
        writable = os.access(folder, os.W_OK)
        return StoreCheck(shown, kind, writable, exists=False, trouble="" if writable else f"{folder} is not writable")
    trouble: list[str] = []
    instead: list[str] = []

    def ask() -> None:
        try:
            MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        except Exception as error:  # the store's, the driver's or the network's own: whatever it is, it is the answer
            trouble.append(_root(error))
            instead.append(answered(error))

    began = time.monotonic()
    with _one_try(deadline):
        asking = threading.Thread(target=ask, daemon=True)  # a name server that hangs knows no timeout
        asking.start()
        asking.join(deadline)
    if asking.is_alive():
        trouble.append(f"no answer within {deadline:.0f} s")
    seconds = time.monotonic() - began
    return StoreCheck(shown, kind, not trouble, seconds, next(iter(trouble), ""), next(iter(instead), ""))


@contextmanager
def _one_try(deadline: float) -> Iterator[None]:
    """MLflow's own seven tries would wait for four minutes; it takes their number from the environment only."""
    ours = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, int(deadline)))}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _kind(uri: str) -> str:
    scheme = uri.partition(":")[0].partition("+")[0]
    if is_sqlite(uri):
        return "SQLite file"
    if scheme in ("http", "https"):
        return "tracking server"
    if scheme in ("postgresql", "mysql", "mssql"):
        return "database"
    if scheme == "file":
        return "folder of files"
    return "Databricks" if scheme in ("databricks", "uc") else "plugin"


def _not_made_yet(uri: str) -> Path | None:
    """The folder in which MLflow would make this SQLite file; None if it is there, or no file."""
    path = Path(uri.partition("///")[2].partition("?")[0])
    if not is_sqlite(uri) or not path.name or path.exists():
        return None
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    return folder


def _root(error: BaseException) -> str:
    """What lies beneath: three libraries wrap a refused connection into a paragraph each."""
    deepest: BaseException = error
    while (cause := deepest.__cause__ or deepest.__context__) is not None:
        deepest = cause
    if isinstance(deepest, OSError) and deepest.strerror:
        return deepest.strerror
    return sentence(error).partition(" [SQL:")[0]


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
                f"The tracking server at {strip_credentials(uri)} does not answer ({check.trouble}). Check "
                "that it runs and that the address is right; `mlflow-stability doctor` tests the connection."
            )
        _answered_at[uri] = time.monotonic()
    file = missing_database(uri)
    if file is not None:
        # MLflow would make it, which takes seven seconds and leaves an empty database behind.
        raise RunNotFoundError(
            f"No MLflow database at {file}. Pass --tracking-uri (tracking_uri=) or set MLFLOW_TRACKING_URI."
        )
    with store_trouble("open the tracking store"):
        return MlflowClient(tracking_uri=uri)


def store_address(tracking_uri: str | None = None) -> str:
    """Where MLflow looks for runs, without credentials."""
    return strip_credentials(tracking_uri or mlflow.get_tracking_uri())


def missing_database(tracking_uri: str | None = None) -> Path | None:
    """The SQLite file that MLflow would have to make first; None where there is one, or another store."""
    file = sqlite_file(absolute_uri(tracking_uri or mlflow.get_tracking_uri(), str(Path.cwd())))
    return None if file is None or file.exists() else file


def _answered_lately(uri: str) -> bool:
    return uri in _answered_at and time.monotonic() - _answered_at[uri] < REMEMBERED


def _closed(sentence: str) -> str:
    return sentence if sentence.endswith(("?", ".")) else f"{sentence}."


def experiment_by_id(client: MlflowClient, asked: str) -> Experiment | None:
    """The experiment of this id, which are digits; None where there is none, or it can be no id."""
    if _EXPERIMENT_ID.fullmatch(asked) is None:
        return None
    try:
        return client.get_experiment(asked)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
