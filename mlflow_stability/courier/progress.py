"""Progress of the delivery, in small JSON files that other processes read.

Guarantees: a reader sees the old page or the new one; a full disk leaves the old page and no litter.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mlflow_stability.journal.layout import DELIVERED, STATUS, read_page, write_file
from mlflow_stability.tracking.keys import PREFIX


def write_page(file: Path, content: dict[str, Any]) -> bool:
    """Replace a page; False where the disk is full."""
    return write_file(file, json.dumps(content).encode())


@dataclass(slots=True)
class Delivered:
    """State of one recording's delivery; every field is plain JSON."""

    folder: Path
    recording: str = ""
    run_id: str | None = None
    run_name: str = ""
    url: str = ""  # page of the run on a server, without credentials
    command: str = ""  # command that starts a server, if the store has no server
    verdict: str = ""  # outcome of the training in a sentence, once known
    cause: str = ""
    codes: str = ""
    checkpoint: str = ""
    creating: bool = False  # a run was requested, and no answer has come
    number: int | None = None  # number of the recording in its run
    prefix: str = PREFIX  # first part of its metric keys
    offset: int = 0  # added to its steps
    metrics_until: int = 0  # position in the journal up to which metrics have arrived
    thinning: dict[str, Any] = field(default_factory=dict)  # state of the thinner at that position
    parts_until: int = 0  # position up to which the Parquet record has arrived
    events_files: int = 0  # number of full event files that have arrived
    git: dict[str, str] | None = None  # git state of the training's code; None before git was asked
    complete: bool = False  # everything recorded has arrived

    @classmethod
    def read(cls, folder: Path) -> Delivered:
        """Continue what was delivered before, if anything was."""
        names = {field.name for field in fields(cls)} - {"folder"}
        page = read_page(folder / DELIVERED)
        page.setdefault("prefix", page.get("section", PREFIX))  # its name before 1.0
        return cls(folder, **{name: value for name, value in page.items() if name in names})

    def run(self) -> dict[str, str]:
        """Return what the training may print of the run."""
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
        """Save it; where the disk is full, a new courier would only send something twice."""
        content = asdict(self)
        del content["folder"]
        write_page(self.folder / DELIVERED, content)


_AT_LEAST_EVERY = 10.0


@dataclass(frozen=True, slots=True)
class CourierStatus:
    state: str  # `starting`, `delivering`, `waiting` (for the store), `idle` or `done`
    waiting_records: int = 0  # bytes of the journals that have not arrived
    away_since: float | None = None  # since when the store takes nothing
    error: str = ""  # its last error in one sentence, without credentials
    refused: tuple[str, ...] = ()  # what the store will not take
    left: tuple[str, ...] = ()  # what has not arrived yet, in words
    flushed: int = 0  # number of the last flush request that was answered
    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Runs by name of the recording's folder; the folders go when everything has arrived."""
    notices: tuple[str, ...] = ()  # what the training should print, each once


class StatusPage:
    """Writes the status when it has changed, and regularly to show that the courier lives."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / STATUS
        self._last: CourierStatus | None = None
        self._written_at = 0.0

    def show(self, status: CourierStatus) -> None:
        now = time.monotonic()
        if status != self._last or now - self._written_at >= _AT_LEAST_EVERY:
            self._last, self._written_at = status, now
            write_page(self._file, {"pid": os.getpid(), "time": time.time(), **asdict(status)})
