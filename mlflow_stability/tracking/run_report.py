"""Adds finished reports to a run.

In: a run id and files. Out: artifacts in `stability/`, and where they lie. Promised: a report of the same name is
replaced, nothing else of the run is touched, and its status and times stay as they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow_stability.tracking.impatience import answering_client
from mlflow_stability.tracking.store_trouble import store_trouble

REPORT_FOLDER = "stability"


def log_report(run_id: str, tracking_uri: str | None, files: Mapping[str, str]) -> Path | None:
    """Write each text into the run, under its file name; the folder they are in, where this machine has it."""
    client = answering_client(tracking_uri)
    with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
        for name, text in files.items():
            file = Path(room, name)
            file.write_text(text, encoding="utf-8")
            with store_trouble(f"add {name} to run {run_id}"):
                client.log_artifact(run_id, str(file), REPORT_FOLDER)
    with store_trouble(f"read run {run_id}"):
        root = client.get_run(run_id).info.artifact_uri
    parts = urlsplit(root)
    if parts.scheme:
        return Path(unquote(parts.path), REPORT_FOLDER) if parts.scheme == "file" else None
    return Path(root, REPORT_FOLDER)
