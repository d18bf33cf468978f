"""Sends files that are written for the run alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.write import RunWriter


def upload_file(writer: RunWriter, folder: str, name: str, write: Callable[[Path], object]) -> None:
    """Have a file written and send it; `TrackingError` where the disk is full or the store did not take it."""
    try:
        with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
            file = Path(room, name)
            write(file)
            writer.upload(file, folder)
    except OSError as error:
        raise TrackingError(f"Could not write {name}: {error}") from error
