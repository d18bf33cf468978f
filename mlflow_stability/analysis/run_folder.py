"""Finds the folder of a run where runs are kept as files, and our full record in it.

In: a run id, and where runs live as far as that was said; or the history of a run in MLflow's file layout. Out: the
folder, or None where runs live in a database or on a server; the history from the full record, wherever the folder was
copied to. Guarantees: neither MLflow nor torch is loaded; MLflow by itself no longer opens such stores.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow_stability.vocabulary.run import RunHistory

DEFAULT = "mlruns"


def run_folder(run_id: str, tracking_uri: str | None = None) -> Path | None:
    """The folder of this run in a store of files."""
    store = store_folder(tracking_uri)
    if store is None:
        return None
    found = (each for id_ in (run_id, run_id.lower()) for each in sorted(store.glob(f"*/{id_}/meta.yaml")))
    return next((each.parent for each in found), None)


def store_folder(tracking_uri: str | None = None) -> Path | None:
    """The folder of a store of files; None where runs live in a database or on a server."""
    said = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if said:
        store = _folder_of(said)
        return store if store is not None and store.is_dir() else None
    # MLflow's default database keeps artifacts in a folder of this name: one of runs has a file about each.
    return Path(DEFAULT) if any(Path(DEFAULT).glob("*/*/meta.yaml")) else None


def _folder_of(uri: str) -> Path | None:
    if uri.startswith("file:"):
        return Path(unquote(urlsplit(uri).path))
    return None if "://" in uri or uri.startswith(("databricks", "uc")) else Path(uri)


def from_full_record(history: RunHistory) -> RunHistory:
    """The history as it was recorded; unchanged where nothing of ours lies beside the metrics."""
    if history.format != "mlflow_files":
        return history
    from mlflow_stability.tracking.artifacts import RECORD_FOLDERS  # only runs of MLflow have artifacts

    folder = Path(history.source)
    if not any((folder / "artifacts" / each).is_dir() for each in RECORD_FOLDERS):
        return history
    from mlflow_stability.tracking.read.recorded_history import RunFacts, recorded_folder, with_metrics_of_the_script

    facts = RunFacts(history.source, history.name, "", history.params, history.tags)
    recorded = recorded_folder(folder, facts)
    return history if recorded is None else with_metrics_of_the_script(recorded, history.metrics)
