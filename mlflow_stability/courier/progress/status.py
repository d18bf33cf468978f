"""How far the courier is, on a page that training and `doctor` read: `status.json`."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mlflow_stability.courier.progress.json_file import write_page
from mlflow_stability.journal.layout import STATUS

_AT_LEAST_EVERY = 10.0


@dataclass(frozen=True, slots=True)
class CourierStatus:
    """One look at the courier."""

    state: str
    """`starting`, `delivering`, `waiting` (for the store), `idle` or `done`."""
    waiting_records: int = 0
    """Bytes of the journals that have not arrived."""
    away_since: float | None = None
    """Since when the store does not take anything."""
    error: str = ""
    """What it said, in one sentence without credentials."""
    refused: tuple[str, ...] = ()
    """What the store will not take."""
    left: tuple[str, ...] = ()
    """What is still on its way, in words for people."""
    flushed: int = 0
    """The number of the last request to deliver everything that was answered."""
    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the name of each recording's folder, what is known of its run; the folders go when everything has arrived."""
    notices: tuple[str, ...] = ()
    """What the training should say on its console, each once."""


class StatusPage:
    """Writes the status when it has changed, and now and then to show that the courier lives."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / STATUS
        self._last: CourierStatus | None = None
        self._written_at = 0.0

    def show(self, status: CourierStatus) -> None:
        """Put this on the page."""
        now = time.monotonic()
        if status != self._last or now - self._written_at >= _AT_LEAST_EVERY:
            self._last, self._written_at = status, now
            write_page(self._file, {"pid": os.getpid(), "time": time.time(), **asdict(status)})
