"""Carries the batches of broken steps into the run, where the user asked for that.

In: the folder where a recording keeps them, of which the training speaks only if they are to be sent. Out: the same
files under `stability/batches/`, each named after its recording and its step as the run counts them. Guarantees: the
folder is only read; a file that is gone when its turn comes is no trouble; one that the store refuses is passed over.
After a courier that was killed all of them, a few at most, are sent again over themselves.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

from mlflow_stability.courier.streams.checkpoint_stream import link_or_copy
from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.store.store_errors import RefusedError
from mlflow_stability.tracking.write import RunWriter

INTERVAL = 10.0
FOLDER = "stability/batches"
_FILE = re.compile(r"batch-(\d+)\.pt")


class BatchStream:
    """The kept batches of one recording."""

    words = "batches"

    def __init__(self, directory: Path, writer: RunWriter, number: int, offset: int) -> None:
        self.done = False
        self.hurried = False
        self.refused = ""
        """Why the store does not take one; empty while it takes all."""
        self._directory = directory
        self._writer = writer
        self._number = number
        self._offset = offset
        """What is added to a step for it to be as the run counts."""
        self._passed: set[str] = set()
        """What was sent, or cannot be."""
        self._looked_at = -INTERVAL

    def flush(self, over: bool) -> bool:
        """Send one file, where there is one to send."""
        if not (over or self.hurried) and time.monotonic() - self._looked_at < INTERVAL:
            return False
        for file in sorted(self._directory.iterdir()) if self._directory.is_dir() else ():
            found = _FILE.fullmatch(file.name)
            if found is not None and file.name not in self._passed:
                self._send(file, int(found[1]))
                self._passed.add(file.name)
                return True
        self._looked_at = time.monotonic()
        self.done = over
        self.hurried = False
        return False

    def _send(self, file: Path, step: int) -> None:
        name = f"recording-{self._number:03d}-batch-{step + self._offset:06d}.pt"
        try:
            with tempfile.TemporaryDirectory(prefix=".sending-", dir=self._directory.parent) as room:
                link_or_copy(file, Path(room, name))
                self._writer.upload(Path(room, name), FOLDER)
        except FileNotFoundError:
            return  # somebody has just removed it
        except RefusedError as error:
            self.refused = str(error)
        except OSError as error:
            raise TrackingError(f"Could not read batch {file.name}: {error}") from error
