"""Base of what takes records from the one reader of a journal, and when to retry."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mlflow_stability.errors import JournalError, RunNotFoundError, TrackingError
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.write import RunWriter


class Sink:
    """Takes every record of a journal behind a position, once and in order, as a `JournalReader` gives them."""

    more = True
    """Kept by the reader: whether it has seen records that were not taken yet."""
    end_seen_at: float | None = None
    """Kept by the reader: when (monotonic clock) it last looked and had no further record for this sink."""

    def __init__(self, until: int = 0) -> None:
        self.until = until
        """Kept by the reader: the position behind the last record taken, which in `take` is where its record begins."""

    @property
    def full(self) -> bool:
        """Whether nothing more is taken before something was sent; asked between portions of a few hundred records."""
        return False

    def take(self, record: Record) -> None:
        """Take one record. Talks to no store, so that it neither waits nor fails."""
        raise NotImplementedError


class Stream(Protocol):
    """One kind of data on its way into the run."""

    words: str
    """What it carries, for people who wait for it."""
    done: bool
    """Everything has arrived."""
    hurried: bool
    """Set from outside: send at once what was recorded so far. False again when all of it has arrived."""

    def flush(self, over: bool) -> bool:
        """Send what is due, one request at most; True if there is more to send at once.

        `over`: nothing more will be recorded, send the rest. Raises `TrackingError` when the store did not take it;
        calling again tries the same again.
        """


_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0


class Backoff:
    """The trouble with one thing that has to be done: waits ever longer, never gives up by itself."""

    def __init__(self) -> None:
        self.error = ""
        """What went wrong the last time; empty while all is well."""
        self.hopeless = False
        """Trying again does not help: the run or the journal is gone."""
        self.since: float | None = None
        """Since when."""
        self._delay = _FIRST_DELAY
        self._again_at = 0.0

    def ready(self, now: float) -> bool:
        """Whether it is time to try."""
        return now >= self._again_at

    def failed(self, error: Exception, now: float) -> None:
        """It did not work."""
        self.error = str(error)
        self.hopeless = isinstance(error, RunNotFoundError | JournalError)
        self.since = now if self.since is None else self.since
        self._again_at = now + self._delay
        self._delay = min(_LONGEST_DELAY, self._delay * 2)

    def succeeded(self) -> None:
        """It works (again)."""
        self.error, self.since, self.hopeless = "", None, False
        self._delay, self._again_at = _FIRST_DELAY, 0.0


def upload_file(writer: RunWriter, folder: str, name: str, write: Callable[[Path], object]) -> None:
    """Have a file written and send it; `TrackingError` where the disk is full or the store did not take it."""
    try:
        with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
            file = Path(room, name)
            write(file)
            writer.upload(file, folder)
    except OSError as error:
        raise TrackingError(f"Could not write {name}: {error}") from error
