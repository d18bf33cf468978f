"""Finds the folder of a run where runs are kept as files.

In: a run id, and where runs live as far as that was said. Out: the folder, or None where runs live in a database or on
a server. Promised: MLflow is not needed, which by itself no longer opens such stores.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

DEFAULT = "mlruns"


def run_folder(run_id: str, tracking_uri: str | None = None) -> Path | None:
    """The folder of this run in a store of files."""
    said = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    store = Path(DEFAULT) if not said else _folder_of(said)
    if store is None or not store.is_dir():
        return None
    found = (each for id_ in (run_id, run_id.lower()) for each in sorted(store.glob(f"*/{id_}/meta.yaml")))
    return next((each.parent for each in found), None)


def _folder_of(uri: str) -> Path | None:
    if uri.startswith("file:"):
        return Path(unquote(urlsplit(uri).path))
    return None if "://" in uri or uri.startswith(("databricks", "uc")) else Path(uri)
