"""What a courier asks of MLflow's client, set before the first request; what the user has set stays."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from mlflow_stability.tracking.store import without_credentials

_WISHES = {
    # We wait and try again ourselves; MLflow's own seven attempts would block for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # It prints the address of the run, with the password that may stand in it.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def ask_for_short_requests() -> None:
    """Let every request of this process end soon, well or badly."""
    for name, value in _WISHES.items():
        os.environ.setdefault(name, value)


class _RedactingStream:
    """A stream that leaves credentials out, whoever writes to it: MLflow, its drivers, a traceback."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write all but the credentials."""
        return self._stream.write(without_credentials(text))

    def flush(self) -> None:
        """Pass it on."""
        self._stream.flush()


def keep_credentials_out_of_the_log() -> None:
    """From here on, nothing that this process says names a user or a password of a tracking URI."""
    sys.stdout = sys.stderr = _RedactingStream(sys.stderr)
