"""Base of the sinks of a recording: what takes its records and sends them, and when to try again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.errors import JournalError, RunNotFoundError, TrackingError
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.write import RunWriter


class Sink:
    """Takes every record of a journal behind a position, once and in order, as a `JournalReader` gives them."""

    more = True
    """Kept by the reader: whether it has seen records that were not taken yet."""
    patience = 0.0
    """For how many seconds the others wait for this sink where it is full."""
    full_since: float | None = None
    """Kept by the reader: since when (monotonic clock) it is full."""
    end_seen_at: float | None = None
    """Kept by the reader: when (monotonic clock) it last looked and had no further record for this sink."""

    def __init__(self, until: int = 0) -> None:
        self.until = until
        """Kept by the reader: the position behind the last record taken, which in `take` is where its record begins."""
        self.done = False
        """Everything has arrived."""

    @property
    def full(self) -> bool:
        """Whether nothing more is taken before something was sent; asked between portions of a few hundred records."""
        return False

    def take(self, record: Record) -> None:
        """Take one record. Talks to no store, so that it neither waits nor fails."""


class TimedSink(Sink):
    """A sink that sends one kind of data now and then, and at once where somebody waits for it."""

    words = ""
    """What it carries, for people who wait for it."""
    interval = 0.0
    """Seconds between two looks at what there is to send."""

    def __init__(self, until: int = 0) -> None:
        super().__init__(until)
        self.hurried = False
        """Set from outside: send at once what was recorded so far. False again when all of it has arrived."""
        self.looked_at = float("-inf")
        """When it last had nothing left to send (monotonic clock)."""

    def flush(self, over: bool) -> bool:
        """Send what is due, one request at most; True if there is more to send at once.

        `over`: nothing more will be recorded, send the rest. Raises `TrackingError` when the store did not take it;
        calling again tries the same again.
        """
        raise NotImplementedError

    def due(self, over: bool) -> bool:
        """Whether it is time to look at what there is to send."""
        return over or self.hurried or time.monotonic() - self.looked_at >= self.interval

    def rest(self, over: bool) -> bool:
        """Note that nothing is left to send for now; False, as `flush` returns then."""
        self.looked_at = time.monotonic()
        self.done, self.hurried = over, False
        return False


class RunSink(TimedSink):
    """A sink that sends into the run of a recording."""

    def __init__(self, delivered: Delivered, writer: RunWriter, until: int = 0) -> None:
        super().__init__(until)
        self._delivered = delivered
        self._writer = writer
        self._number = delivered.number or 0
        self._offset = delivered.offset

    def upload(self, folder: str, name: str, content: str | bytes | Callable[[Path], object]) -> None:
        """Send a file; `TrackingError` where the disk is full or the store did not take it."""
        upload_file(self._writer, folder, name, content)


def upload_file(writer: RunWriter, folder: str, name: str, content: str | bytes | Callable[[Path], object]) -> None:
    """Send a file that is written for the run alone, as `RunSink.upload` does."""
    try:
        with temporary_file(name, content) as file:
            writer.upload(file, folder)
    except OSError as error:
        raise TrackingError(f"Could not write {name}: {error}") from error


@contextmanager
def temporary_file(name: str, content: str | bytes | Callable[[Path], object]) -> Iterator[Path]:
    """A file of this name, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
        file = Path(room, name)
        if callable(content):
            content(file)
        else:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        yield file


_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0


class Backoff:
    """The trouble with one thing that has to be done: waits ever longer, never gives up by itself."""

    def __init__(self, first: float = _FIRST_DELAY, longest: float = _LONGEST_DELAY) -> None:
        self.error = ""
        """What went wrong the last time; empty while all is well."""
        self.hopeless = False
        """Trying again does not help: the run or the journal is gone."""
        self.since: float | None = None
        """Since when."""
        self._first, self._longest = first, longest
        self._delay = first
        self._again_at = 0.0

    def ready(self, now: float) -> bool:
        """Whether it is time to try."""
        return now >= self._again_at

    def failed(self, error: Exception, now: float) -> None:
        """Wait twice as long as before the last attempt."""
        self.error = str(error) or type(error).__name__
        self.hopeless = isinstance(error, RunNotFoundError | JournalError)
        self.since = now if self.since is None else self.since
        self._again_at = now + self._delay
        self._delay = min(self._longest, self._delay * 2)

    def succeeded(self) -> None:
        """Begin anew."""
        self.error, self.since, self.hopeless = "", None, False
        self._delay, self._again_at = self._first, 0.0
