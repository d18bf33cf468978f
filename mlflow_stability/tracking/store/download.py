"""Downloads without MLflow's progress bars, where they are in the way."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """MLflow draws a bar for each file and takes its wish for none from the environment only, which threads share."""
    name = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
    with _quiet.lock:
        if not _quiet.readers:
            _quiet.before = os.environ.get(name)
            os.environ[name] = "false"
        _quiet.readers += 1
    try:
        yield
    finally:
        with _quiet.lock:
            _quiet.readers -= 1
            if not _quiet.readers:
                os.environ.pop(name, None)
                if _quiet.before is not None:
                    os.environ[name] = _quiet.before


class _NoProgressBars:
    """How many downloads want no bar at the moment, and what the environment said before the first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.readers = 0
        self.before: str | None = None


_quiet = _NoProgressBars()


@contextmanager
def bars_on_a_terminal() -> Iterator[None]:
    """Let MLflow draw its bars for large files where somebody sees them, and nowhere else."""
    if sys.stderr is not None and sys.stderr.isatty():
        yield
        return
    with no_progress_bar():
        yield
