"""Base classes of the sinks of a recording, the one reader of its journal, and outlets beside its run; when to retry.

The reader decodes each record once, for all sinks. Guarantees: a full sink neither delays the others nor fills the
memory. When its patience is over, it gets a cursor of its own, which reads on when there is room again and ends when it
has caught up.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from mlflow_stability.alerts.alert import OutletSettings
from mlflow_stability.alerts.exporters import PrometheusExporter
from mlflow_stability.courier.processes import TrainingState
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.errors import JournalError, RunNotFoundError, TrackingError
from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.journal import JournalFollower, Record
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.run import Closing, Returned

_T = TypeVar("_T")
_logger = logging.getLogger("mlflow_stability.courier")


class Sink:
    """Takes every record of a journal after a position, once and in order, from a `JournalReader`."""

    more = True  # set by the reader: there are records that were not taken yet
    patience = 0.0  # seconds for which other sinks wait for this one while it is full
    full_since: float | None = None  # set by the reader: since when (monotonic clock) it is full
    end_seen_at: float | None = None  # set by the reader: when (monotonic clock) it last had no further record

    def __init__(self, until: int = 0) -> None:
        self.until = until
        """Set by the reader: position after the last record taken; in `take`, where its record starts."""
        self.done = False  # everything has arrived

    @property
    def full(self) -> bool:
        """Whether nothing more is taken before something was sent; asked every few hundred records."""
        return False

    def take(self, record: Record) -> None:
        """Take one record, without any request."""


class TimedSink(Sink):
    """A sink that sends one kind of data now and then, and at once when asked."""

    words = ""  # what it carries, for messages
    interval = 0.0  # seconds between two checks for data to send

    def __init__(self, until: int = 0) -> None:
        super().__init__(until)
        self.hurried = False  # set from outside: send everything at once. False again when it has arrived.
        self.looked_at = float("-inf")  # when it last had nothing left to send (monotonic clock)

    def flush(self, over: bool) -> bool:
        """Send due data, one request at most; True if there is more to send at once.

        `over`: nothing more will be recorded, send the rest. Raises `TrackingError` when the store did not take it; the
        next call tries the same again.
        """
        raise NotImplementedError

    def due(self, over: bool) -> bool:
        return over or self.hurried or time.monotonic() - self.looked_at >= self.interval

    def rest(self, over: bool) -> bool:
        """Note that nothing is left to send for now; False, for `flush` to return."""
        self.looked_at = time.monotonic()
        self.done, self.hurried = over, False
        return False


class RunSink(TimedSink):
    def __init__(self, delivered: Delivered, writer: RunWriter, until: int = 0) -> None:
        super().__init__(until)
        self._delivered = delivered
        self._writer = writer
        self._number = delivered.number or 0
        self._offset = delivered.offset

    def upload(self, folder: str, name: str, content: str | bytes | Callable[[Path], object]) -> None:
        upload_file(self._writer, folder, name, content)


def readable(read: Callable[[Path], _T], file: Path) -> _T | None:
    """Read a file of arrays; None, and a line in the log, where it is damaged or gone."""
    try:
        return read(file)
    except JournalError as error:
        _logger.warning("%s", error)
        return None


def upload_file(writer: RunWriter, folder: str, name: str, content: str | bytes | Callable[[Path], object]) -> None:
    """Send a file with this content; `TrackingError` where the disk is full or the store did not take it."""
    try:
        with temporary_file(name, content) as file:
            writer.upload(file, folder)
    except OSError as error:
        raise TrackingError(f"Could not write {name}: {error}") from error


@contextmanager
def temporary_file(name: str, content: str | bytes | Callable[[Path], object]) -> Iterator[Path]:
    """Make a file of this name, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
        file = Path(room, name)
        if callable(content):
            content(file)
        else:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        yield file


class Backoff:
    """Failures of one task: retries ever less often, never gives up by itself."""

    def __init__(self, first: float = 0.5, longest: float = 15.0) -> None:
        """`first` and `longest`: seconds between two attempts."""
        self.error = ""  # the last error; empty if it succeeded
        self.hopeless = False  # retrying does not help: the run or the journal is gone
        self.since: float | None = None
        self._first, self._longest = first, longest
        self._delay, self._again_at = first, 0.0

    def ready(self, now: float) -> bool:
        return now >= self._again_at

    def failed(self, error: Exception, now: float) -> None:
        self.error = str(error) or type(error).__name__
        self.hopeless = isinstance(error, RunNotFoundError | JournalError)
        self.since = now if self.since is None else self.since
        self._again_at = now + self._delay
        self._delay = min(self._longest, self._delay * 2)

    def succeeded(self) -> None:
        self.error, self.since, self.hopeless = "", None, False
        self._delay, self._again_at = self._first, 0.0


@dataclass(frozen=True, slots=True)
class OutletPlan:
    """Outlets of a session's recordings."""

    settings: OutletSettings = field(default_factory=OutletSettings)
    say: Callable[[str], None] = lambda _: None  # lets the training print something once
    prometheus: PrometheusExporter | None = None  # the port that all recordings of the session share


def outlet_plan(settings: OutletSettings, say: Callable[[str], None]) -> OutletPlan:
    port = settings.prometheus_port
    return OutletPlan(settings, say, None if port is None else PrometheusExporter(port, say))


class Outlet(Sink):
    """A sink beside the run. It needs no tracking server, and an error switches it off: the run is what matters."""

    awaited_seconds = 10.0  # how long the end of the training waits for it
    give_up_seconds = 600.0  # how long after the end of the training it is tried
    over_since: float | None = None  # when (monotonic clock) everything that will ever come was taken

    def __init__(self, plan: OutletPlan, until: int = 0) -> None:
        super().__init__(until)
        self.done = False  # nothing is left to send, or it was given up
        self.awaited = True  # the end of the training should wait for it a little
        self.closing: Closing | None = None  # how the training ended, as its journal says
        self.returned: Closing | None = None  # how it ended if no other step comes
        self._plan = plan

    @property
    def full(self) -> bool:
        return self.done

    def take(self, record: Record) -> None:
        if isinstance(record, StepReading):
            self.returned = None
        elif isinstance(record, Returned):
            self.returned = Closing(**asdict(record))
        elif isinstance(record, Closing):
            self.closing = record
        try:
            self._take(record)
        except Exception as error:  # everything else is still delivered
            self._switch_off(error)

    def flush(self, state: TrainingState) -> bool:
        """Send due data; True if there is more to do at once. Never waits for the network, never raises."""
        try:
            return not self.done and self._flush(state)
        except Exception as error:
            self._switch_off(error)
            return False

    def ends(self, state: TrainingState) -> bool:
        """Note whether everything that will ever come was taken; True at the first call after that."""
        over = not self.more and (self.closing is not None or state.closing is not None or not state.alive)
        if not over or self.over_since is not None:
            return False
        self.over_since = time.monotonic()
        return True

    def settle(self, left: bool) -> None:
        """After the end of the training, note whether anything is left to be waited for."""
        if self.over_since is not None:
            since = time.monotonic() - self.over_since
            self.awaited = left and since < self.awaited_seconds
            self.done = not left or since > self.give_up_seconds

    def _take(self, record: Record) -> None:
        raise NotImplementedError

    def _flush(self, state: TrainingState) -> bool:
        raise NotImplementedError

    def _switch_off(self, error: Exception) -> None:
        self.done, self.awaited = True, False
        name = type(self).__name__
        _logger.error("%s failed", name, exc_info=error)
        self._plan.say(
            f"{name} failed ({type(error).__name__}) and is switched off; the courier's log has the traceback. "
            "Training and its run are not affected."
        )


READ_AT_ONCE = 500  # records between two checks for full sinks


@dataclass(slots=True)
class _Cursor:
    """Sinks at the same position of the journal."""

    follower: JournalFollower
    sinks: list[Sink]

    @property
    def position(self) -> int:
        return self.follower.position

    @property
    def waits(self) -> bool:
        """Whether nothing is read: all sinks are full, or one for which the others wait."""
        full = [sink for sink in self.sinks if sink.full]
        return len(full) == len(self.sinks) or any(sink.patience for sink in full)

    def read(self, until: int | None) -> bool:
        """Give the next records to the sinks; whether there may be more."""
        entries = self.follower.read(READ_AT_ONCE, until)
        for entry in entries:
            for sink in self.sinks:
                if entry.end > sink.until:
                    sink.take(entry.record)
                    sink.until = entry.end
        return len(entries) >= READ_AT_ONCE


class JournalReader:
    def __init__(self, folder: Path) -> None:
        self._file = folder / JOURNAL
        self._cursors: list[_Cursor] = []

    def add(self, *sinks: Sink) -> None:
        """Add sinks with a new cursor: it starts at the beginning of the journal, where the names are."""
        if sinks:
            self._cursors.append(_Cursor(JournalFollower(self._file), list(sinks)))

    def advance(self) -> bool:
        """Give a portion of records to each sink that is not full; True if there is more to read at once."""
        now = time.monotonic()
        # Sinks that have been full for too long get a cursor of their own.
        for cursor in list(self._cursors):
            for sink in cursor.sinks:
                sink.full_since = (sink.full_since or now) if sink.full else None
            full = [sink for sink in cursor.sinks if sink.full_since and now - sink.full_since >= sink.patience]
            if full and len(full) < len(cursor.sinks):
                cursor.sinks = [sink for sink in cursor.sinks if sink not in full]
                self._cursors.append(_Cursor(cursor.follower.fork(), full))
        self._cursors.sort(key=lambda cursor: (cursor.position, not cursor.sinks[0].full), reverse=True)
        until: int | None = None
        more = True  # as far as is known while the first cursor waits
        for cursor in self._cursors:
            if not cursor.waits:  # as far as the cursor before it, and not beyond: there they become one
                has_more = cursor.read(until)
                more = has_more if until is None else more
            until = cursor.position
        for cursor in self._cursors:
            for sink in cursor.sinks:
                sink.more = more or cursor.position < self._cursors[0].position
                if not sink.more:
                    sink.end_seen_at = now
        united: dict[int, _Cursor] = {}  # cursors at the same position become one
        for cursor in self._cursors:
            first = united.setdefault(cursor.position, cursor)
            if first is not cursor:
                first.sinks += cursor.sinks
        self._cursors = list(united.values())
        return any(cursor.sinks[0].more and not cursor.waits for cursor in self._cursors)
