"""Where a run is followed: in its journal, if that is on this machine, else in the tracking store.

In: a run id, or nothing. Out: a source whose `look` gives what is known now. Guarantees: a journal that its courier has
delivered and removed is followed up in the store; a store that is away for a moment leaves what was known.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from mlflow_stability.cli.watch.watched_run import QUANTITIES, WatchedRun
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.training_process import process_of
from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.journal.follower import JournalFollower, is_deleted, opening_if_readable
from mlflow_stability.journal.layout import recording_folders, session_folders
from mlflow_stability.journal.writer import JOURNAL as JOURNAL

ASK_STORE_EVERY = 10.0
"""Seconds between two looks into a tracking store."""


class Source(Protocol):
    """Where a run is followed."""

    def look(self) -> WatchedRun:
        """What is known of it now."""
        ...


class JournalSource:
    """The journal of one recording."""

    def __init__(self, folder: Path) -> None:
        self.run = WatchedRun(f"recording {folder.parent.name}")
        self.gone = False
        """All of it has been delivered, and it was removed."""
        self._folder = folder
        self._follower = JournalFollower(folder / JOURNAL)
        self._process = process_of(folder.parent, opening_if_readable(folder))

    def look(self) -> WatchedRun:
        """All that was appended since."""
        alive = self._process.alive()  # before reading: what it wrote last is read then
        delivered = Delivered.read(self._folder)
        if delivered.run_id:
            self.run.run_id, self.run.name = delivered.run_id, f"run {delivered.run_id[:12]}"
        while entries := self._follower.read():
            for entry in entries:
                self.run.hear(entry.record, delivered.offset)
        if is_deleted(self._folder):
            self.gone = True
            return self.run
        if not alive and not self.run.ended:
            self.run.ended = "its process is gone"
        return self.run


class StoreSource:
    """A run in a tracking store."""

    def __init__(self, run_id: str, tracking_uri: str | None) -> None:
        self._run_id, self._uri = run_id, tracking_uri
        self._known: WatchedRun | None = None
        self._looked_at = 0.0

    def look(self) -> WatchedRun:
        """What the store has; asked again only after a while."""
        if self._known is not None and time.monotonic() - self._looked_at < ASK_STORE_EVERY:
            return self._known
        try:
            self._known = self._read()
        except TrackingError:
            if self._known is None:
                raise
        self._looked_at = time.monotonic()
        return self._known

    def _read(self) -> WatchedRun:
        from mlflow_stability.tracking.read.run_reader import RunReader

        reader = RunReader(self._run_id, self._uri)
        run = WatchedRun(reader.name, reader.run_id)
        record = reader.metric_points(QUANTITIES)
        if record is None:
            raise RunNotFoundError(
                f"Run {self._run_id} has no metrics of mlflow-stability{_since(reader.status)}. "
                "To record a training, call mlflow_stability.autolog() in its script, or start it with "
                "`mlflow-stability run train.py`. "
                f"What others logged is judged by `mlflow-stability diagnose {self._run_id[:8]}`."
            )
        for reading in record.readings():
            run.hear(reading)
        for _, said in reader.event_lines():
            run.hear(said)
        run.ended = "" if reader.status == "RUNNING" else run.ended or reader.status.lower()
        return run


def _since(status: str) -> str:
    """A run that has just begun may get its first metrics in a moment."""
    return " yet; the first arrive a few seconds after the first steps" if status == "RUNNING" else ""


def source_of(run_id: str, journal: Path, tracking_uri: str | None) -> JournalSource | StoreSource:
    """Where this run is followed best."""
    for folder in reversed(_recordings(journal)):
        if Delivered.read(folder).run_id == run_id.lower():
            return JournalSource(folder)
    return StoreSource(run_id, tracking_uri)


def newest_journal(journal: Path) -> JournalSource | None:
    """The recording that began last in this directory and is still there."""
    found = _recordings(journal)
    return JournalSource(found[-1]) if found else None


def _recordings(journal: Path) -> list[Path]:
    return [folder for session in session_folders(journal) for folder in recording_folders(session)]
