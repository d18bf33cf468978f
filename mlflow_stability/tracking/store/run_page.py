"""Where people look at a run: its page in MLflow's UI, and how to open it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient

from mlflow_stability.tracking.store.address import is_sqlite, strip_credentials
from mlflow_stability.tracking.store.store_errors import store_trouble

LOCAL_UI = "http://127.0.0.1:5000"


@dataclass(frozen=True, slots=True)
class RunPage:
    """A run, as MLflow's UI names it."""

    name: str
    status: str
    path: str
    """Behind the address of the server; opens the overview in the layout for training."""
    command: str
    """What starts a UI on this store; empty where a server shows it already."""
    server: str
    """The address in front of `path`."""

    @property
    def url(self) -> str:
        """The whole address."""
        return self.server + self.path


def run_page(run_id: str, tracking_uri: str | None = None) -> RunPage:
    """The page of a run; `RunNotFoundError` if there is none."""
    uri = tracking_uri or mlflow.get_tracking_uri()
    with store_trouble(f"read run {run_id}"):
        info = MlflowClient(tracking_uri=uri).get_run(run_id).info
    # New experiments open in the layout for language model applications unless the address says otherwise.
    path = f"/#/experiments/{info.experiment_id}/runs/{run_id}?workflowType=machine_learning"
    shown = strip_credentials(uri)
    if shown.startswith(("http://", "https://")):
        return RunPage(info.run_name or run_id, info.status, path, "", shown.rstrip("/"))
    return RunPage(
        info.run_name or run_id, info.status, path, f"mlflow ui --backend-store-uri {_short(shown)}", LOCAL_UI
    )


def _short(uri: str) -> str:
    """A SQLite file of this very directory by its name alone."""
    scheme, _, path = uri.partition(":///")
    return f"{scheme}:///{Path(path).name}" if is_sqlite(uri) and Path(path).parent == Path.cwd() else uri
