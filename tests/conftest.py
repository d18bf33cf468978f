"""A clean place for every test: a directory of its own, no leftovers in the environment, one template database."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from forked import processes
from forked.fork_server import LINK
from forked.processes import ForkServers, forking
from hypothesis import settings
from servers.mlflow_server import mlflow_server
from servers.troubled_server import TroubledServer

# Before anything imports MLflow: it reads these once.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
# One thread for each of the processes that tests start: they share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_OURS = (
    "MLFLOW_STABILITY_ALERTS",
    "MLFLOW_STABILITY_DISABLE",
    "MLFLOW_STABILITY_JOURNAL_DIR",
    "MLFLOW_STABILITY_EXIT_WAIT",
    "MLFLOW_STABILITY_OFFLINE",
    "MLFLOW_STABILITY_TRACEBACK",
)
_THEIRS = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    # Set by the courier, and by commands that deliver.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES",
    "MLFLOW_HTTP_REQUEST_TIMEOUT",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT",
)
# A busy machine takes longer for one example than for another.
settings.register_profile("without a deadline", settings.default, deadline=None)
settings.load_profile("without a deadline")
# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_place(gives_back: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of one test is left for the next, and nothing in the checkout."""
    of_module = {name: os.environ.pop(name) for name in (*_OURS, *_THEIRS) if name in os.environ}
    monkeypatch.chdir(tmp_path)
    if (counted := sys.modules.get("torch._dynamo.utils")) is not None:
        counted.counters.clear()  # where anything was compiled, operations are not counted
    if (compiled := sys.modules.get("torch._dynamo.eval_frame")) is not None:
        compiled.cached_backends.clear()
        compiled.always_optimize_code_objects.clear()
    yield
    for name in (*_OURS, *_THEIRS):
        os.environ.pop(name, None)
    os.environ.update(of_module)


@pytest.fixture(autouse=True, scope="session")
def fork_servers() -> Iterator[ForkServers | None]:
    """Inside, `forked.processes.start` forks processes that have imported what a program imports."""
    with tempfile.TemporaryDirectory() as folder, forking(Path(folder)) as servers:
        yield servers


@pytest.fixture(autouse=True)
def forked_couriers(
    request: pytest.FixtureRequest, fork_servers: ForkServers | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Couriers of trainings in this process are forked; in fault tests and with `plain_start` nothing is."""
    if request.node.get_closest_marker("fault") or "plain_start" in request.fixturenames:
        monkeypatch.setattr(processes, "_servers", None)
    elif fork_servers is not None and (link := sys.modules.get(LINK)):
        monkeypatch.setattr(link, "_LAUNCH", fork_servers)


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery in this process sends pictures under their names, without drawing: a dashboard takes a second."""
    from mlflow_stability.courier.sinks import figure_sink

    drawn = [replace(figure, draw=lambda _data: b"\x89PNG") for figure in figure_sink.run_figures()]
    monkeypatch.setattr(figure_sink, "run_figures", lambda: drawn)


@pytest.fixture
def plain_start() -> None:
    """All processes of a test start as they do outside tests."""


@pytest.fixture(scope="session")
def template_database(request: pytest.FixtureRequest) -> Path:
    """A fresh MLflow database: making one takes seven seconds, so it is kept in pytest's cache for this MLflow."""
    import mlflow

    folder = request.config.cache.mkdir("mlflow_database")
    database = folder / f"{mlflow.__version__}.db"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait for the first one
        if not database.exists():
            unfinished = folder / "unfinished.db"
            unfinished.unlink(missing_ok=True)
            mlflow.MlflowClient(tracking_uri=f"sqlite:///{unfinished}").search_experiments()
            unfinished.rename(database)
    return database


def copy_of(template: Path, folder: Path) -> Path:
    """A database of its own in this folder, whose default experiment keeps its artifacts there."""
    database = folder / "mlflow.db"
    shutil.copy(template, database)
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE experiments SET artifact_location = ?", ((folder / "artifacts").as_uri(),))
    connection.close()
    return database


@pytest.fixture
def sqlite_uri(template_database: Path, tmp_path: Path) -> str:
    """The tracking URI of an empty SQLite store."""
    folder = tmp_path / "store"
    folder.mkdir()
    return f"sqlite:///{copy_of(template_database, folder)}"


@pytest.fixture(scope="session")
def rest_server(template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real MLflow server that all tests share: look only at runs of your own."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(template_database, folder / "mlflow.db")
    with sqlite3.connect(folder / "mlflow.db") as connection:
        connection.execute("UPDATE experiments SET artifact_location = 'mlflow-artifacts:/' || experiment_id")
    connection.close()
    with mlflow_server(folder, f"sqlite:///{folder / 'mlflow.db'}") as url:
        yield url


@pytest.fixture
def troubled_server(rest_server: str) -> Iterator[TroubledServer]:
    """The same server, behind a proxy that can be set to fail."""
    with TroubledServer(rest_server) as server:
        yield server
