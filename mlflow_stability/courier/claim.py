"""Makes sure that a session has one courier.

In: a session's folder. Out: whether it is ours to deliver. Promised: of couriers that live, one holds the claim; that
of a courier which was killed is taken over. Where two take over at the same moment, both look again until one has it;
even a short overlap does no harm, for everything that is delivered can be delivered twice.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import psutil

from mlflow_stability.courier.training_process import process_lives
from mlflow_stability.journal.layout import COURIER, STATUS

_SILENT_SECONDS = 60.0
_SETTLE_SECONDS = 0.2


class Claim:
    """The right to deliver one session."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / COURIER
        self._mine = {
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "host": socket.gethostname(),
            "claim": time.time_ns(),
        }

    def take(self) -> bool:
        """Claim the session; False if a living courier has it."""
        if self._create():
            return True
        if holder_lives(self._file.parent):
            return False
        self._file.unlink(missing_ok=True)
        if not self._create():
            return False
        time.sleep(_SETTLE_SECONDS)
        return self.holds()

    def holds(self) -> bool:
        """Whether it is still ours."""
        return _holder(self._file) == self._mine

    def release(self) -> None:
        """Leave the session to the next courier."""
        if self.holds():
            self._file.unlink(missing_ok=True)

    def _create(self) -> bool:
        # A link's target is kept where its name is: it is there at once and whole, and fits on a full disk.
        try:
            self._file.symlink_to(json.dumps(self._mine))
        except FileExistsError:
            return False
        return True


def holder_lives(folder: Path) -> bool:
    """Whether a courier is at work on this session."""
    file = folder / COURIER
    holder = _holder(file)
    if not holder:
        return False
    if holder.get("host") == socket.gethostname():
        return process_lives(int(holder.get("pid", 0)), float(holder.get("started", 0.0)))
    return time.time() - max(_changed(file), _changed(folder / STATUS)) < _SILENT_SECONDS


def _holder(file: Path) -> dict[str, Any]:
    """What the link says; nothing where there is none."""
    try:
        said = json.loads(os.readlink(file))  # noqa: PTH115 - a Path would tidy the text up
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _changed(file: Path) -> float:
    try:
        return file.lstat().st_mtime
    except OSError:
        return 0.0
