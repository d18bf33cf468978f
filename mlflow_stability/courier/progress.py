"""Progress of the delivery, in small JSON files that other processes read.

Guarantees: a reader sees the old page or the new one, never half of one; a full disk leaves the old page and no litter.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mlflow_stability.journal.layout import DELIVERED, STATUS
from mlflow_stability.tracking.keys import SECTION

_logger = logging.getLogger(__name__)


def write_page(file: Path, said: dict[str, Any]) -> bool:
    """Put a page in place of the one before; False where there is no room for it."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as page:
            json.dump(said, page)
        draft.replace(file)
    except OSError as error:
        _logger.debug("Could not write %s: %s", file, error)
        draft.unlink(missing_ok=True)
        return False
    return True


def read_page(file: Path) -> dict[str, Any]:
    """What a page says; nothing where there is none or it cannot be read."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


@dataclass(slots=True)
class Delivered:
    """The state of one recording's delivery; every field is plain JSON."""

    folder: Path
    recording: str = ""
    run_id: str | None = None
    run_name: str = ""
    url: str = ""
    """The page of the run, where a server shows it; without credentials."""
    command: str = ""
    """What starts a server that shows it, where there is none."""
    verdict: str = ""
    """The outcome of the training in a sentence; empty until it is known."""
    cause: str = ""
    """Why, in a sentence."""
    codes: str = ""
    """The diversity of sparse codes at the end, in a sentence."""
    checkpoint: str = ""
    """The best checkpoint, in a sentence."""
    creating: bool = False
    """Asked for a run and have not heard of it yet."""
    number: int | None = None
    """Which recording of its run this is."""
    section: str = SECTION
    offset: int = 0
    """What is added to its steps."""
    metrics_until: int = 0
    """The position in the journal up to which metrics have arrived."""
    thinning: dict[str, Any] = field(default_factory=dict)
    """The thinner's state at that position."""
    parts_until: int = 0
    """The position up to which the Parquet record has arrived."""
    events_files: int = 0
    """How many files of events are full and have arrived."""
    git: dict[str, str] | None = None
    """What git said of the training's code; None before it was asked."""
    complete: bool = False
    """Everything that was recorded has arrived."""

    @classmethod
    def read(cls, folder: Path) -> Delivered:
        """Go on from what was delivered before, if anything was."""
        known = {each.name for each in fields(cls)} - {"folder"}
        return cls(folder, **{name: value for name, value in read_page(folder / DELIVERED).items() if name in known})

    def run(self) -> dict[str, str]:
        """What the training may tell of the run."""
        return {
            "run_id": self.run_id or "",
            "name": self.run_name,
            "url": self.url,
            "command": self.command,
            "verdict": self.verdict,
            "cause": self.cause,
            "codes": self.codes,
            "checkpoint": self.checkpoint,
        }

    def save(self) -> None:
        """Keep it; where the disk is full, a new courier would only send something twice."""
        said = asdict(self)
        del said["folder"]
        write_page(self.folder / DELIVERED, said)


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
