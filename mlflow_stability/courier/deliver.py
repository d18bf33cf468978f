"""Deliver a session, the recordings of one training process: called by the courier, by `sync` and at the next start.

Guarantees: nothing is sent twice; a session of a living courier is left alone. Delivery ends when everything has
arrived, or when the store was away for `linger` seconds after the end of training; then the journal stays. The courier
process ignores Ctrl-C and hang-ups, which are meant for the training, has a low priority, and never imports torch.

What deliveries leave behind is removed here too: never what is undelivered, nor anything of a living training or
courier; where a process cannot be asked, age decides.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

from mlflow_stability.alerts.alert import NO_OUTLETS, OUTLETS_VARIABLE, OutletSettings, pop_from_environment
from mlflow_stability.courier.processes import (
    Claim,
    MemoryWatch,
    RankProcesses,
    TrainingProcess,
    holder_lives,
    next_orphan,
    process_of,
    was_delivered,
)
from mlflow_stability.courier.progress import CourierStatus, StatusPage
from mlflow_stability.courier.recording import Recording
from mlflow_stability.courier.sinks.sink import outlet_plan
from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.layout import (
    KEPT_FOLDERS,
    RELEASED,
    STATUS,
    flush_asked,
    is_session,
    journal_roots_below,
    read_page,
    recording_folders,
    remove_empty_root,
    session_folders,
)
from mlflow_stability.recovery.checkpoints.stored_checkpoints import owner_lives, read_owner
from mlflow_stability.tracking.address import without_credentials

_WISHES = {
    # We wait and try again ourselves; MLflow's own seven attempts would block for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # MLflow prints the address of the run, with a password if it contains one.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def ask_for_short_requests() -> None:
    """Let every request of this process end soon; values that the user has set stay."""
    for name, value in _WISHES.items():
        os.environ.setdefault(name, value)


_WORTH_SAYING = 2.0  # seconds for which the store must be away before anybody hears of it
_MOST_NOTICES = 20
_LAST_LOOK = 0.25  # seconds; several of the looks of a training that waits


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    session: Path
    run_ids: tuple[str, ...] = ()
    delivered: int = 0  # recordings that have arrived completely
    remaining: int = 0  # recordings that have not
    waiting_bytes: int = 0  # bytes of their journals that have not arrived
    refused: tuple[str, ...] = ()  # what the store would not take
    error: str = ""  # why something remains, in one sentence
    busy: bool = False  # a living courier delivers this session already
    kept_for: str = ""  # the process that cannot be asked whether it has ended, so that the journal is kept


class SessionDelivery:
    def __init__(
        self,
        folder: Path,
        tracking_uri: str | None,
        killed_for_memory: Callable[[], bool],
        outlets: OutletSettings = NO_OUTLETS,
    ) -> None:
        self.folder = folder
        self.claim = Claim(folder)
        self.alive = True  # whether the training may still append
        self._uri = tracking_uri
        self._killed_for_memory = killed_for_memory
        self._page = StatusPage(folder)
        self._recordings: dict[Path, Recording] = {}
        self._process: TrainingProcess | None = None
        self._settled = False
        self._notices: list[str] = []
        self._ranks = RankProcesses(folder)
        self._plan = outlet_plan(outlets, self._notices.append)
        self._flush_asked = self._flushed = 0  # number of the last flush request, and of the last one answered

    @property
    def over(self) -> bool:
        """Whether nothing more will be recorded, and everything has arrived."""
        ended = not self.alive or (self.folder / RELEASED).exists()
        settled = ended and self._settled
        return settled and all(recording.gone or recording.kept for recording in self._recordings.values())

    @property
    def caught_up(self) -> bool:
        """Whether everything recorded so far has arrived."""
        return all(recording.caught_up for recording in self._recordings.values())

    def advance(self) -> bool:
        """Deliver a portion of each recording; False if there was nothing to do."""
        self._ranks.look()
        self.alive = self.alive and self._the_process().alive()
        # Looked for after that question: a recording that began before the end is found, whatever happened between.
        for folder in recording_folders(self.folder):
            if folder not in self._recordings:
                before = tuple(self._recordings.values())
                process = self._the_process()
                self._recordings[folder] = Recording(folder, process, self._uri, self._plan, self._ranks, before)
        if (asked := flush_asked(self.folder)) > self._flush_asked:
            self._flush_asked = asked
            for recording in self._recordings.values():
                recording.flush()
        moved = False
        for recording in self._recordings.values():
            moved |= recording.advance(self.alive, self._killed_for_memory)
        if all(recording.flushed for recording in self._recordings.values()):
            self._flushed = self._flush_asked
        self._settled = True
        report = self.report()
        since = self.stuck_since()
        stuck_for = 0.0 if since is None else time.monotonic() - since
        if since is not None and stuck_for >= _WORTH_SAYING:
            away = round(time.time() - stuck_for)
            state, error = "waiting", report.error
        else:
            state, away, error = "delivering" if moved or not self.caught_up else "idle", None, ""
        left = tuple(dict.fromkeys(word for recording in self._recordings.values() for word in recording.left))
        runs, notices = self._runs(), tuple(self._notices[-_MOST_NOTICES:])
        self._page.show(
            CourierStatus(
                state, report.waiting_bytes, away, error, report.refused, left, self._flushed, runs, notices=notices
            )
        )
        return moved

    def seconds_to_wait(self) -> float:
        return min((recording.seconds_to_wait() for recording in self._recordings.values()), default=float("inf"))

    def say(self, state: str) -> None:
        """Show a state that is not about the recordings."""
        self._page.show(CourierStatus(state, flushed=self._flushed, runs=self._runs()))

    def stuck_since(self) -> float | None:
        """Since when (monotonic clock) the store takes nothing."""
        since = [trouble.since for recording in self._recordings.values() for trouble in recording.troubles]
        return min((begin for begin in since if begin is not None), default=None)

    @property
    def hopeless(self) -> bool:
        """Whether the rest can never be delivered."""
        left = [recording for recording in self._recordings.values() if not recording.gone]
        return bool(left) and all(any(trouble.hopeless for trouble in recording.troubles) for recording in left)

    def report(self, busy: bool = False) -> DeliveryReport:
        recordings = list(self._recordings.values())
        troubles = [trouble.error for recording in recordings for trouble in recording.troubles]
        return DeliveryReport(
            self.folder,
            tuple(dict.fromkeys(filter(None, (recording.delivered.run_id for recording in recordings)))),
            sum(recording.gone or recording.kept for recording in recordings),
            sum(not recording.gone and not recording.kept for recording in recordings),
            sum(recording.waiting_bytes() for recording in recordings),
            tuple(sorted({key for recording in recordings for key in recording.refused})),
            troubles[0] if troubles else "",
            busy,
            self._the_process().named() if any(recording.kept for recording in recordings) else "",
        )

    def remove(self) -> None:
        """Remove the folder, if no process can write to it any more."""
        self.say("done")
        ended = self._the_process().has_ended()
        if ended or (self.folder / RELEASED).exists():
            if not ended:  # a waiting training looks up the run now and then
                time.sleep(_LAST_LOOK)
            shutil.rmtree(self.folder, ignore_errors=True)
            remove_empty_root(self.folder.parent)

    def _runs(self) -> dict[str, dict[str, str]]:
        every = (recording.delivered for recording in self._recordings.values())
        return {delivered.folder.name: delivered.run() for delivered in every if delivered.run_id}

    def _the_process(self) -> TrainingProcess:
        if self._process is None or self._process.identity is None:
            self._process = process_of(self.folder)
        return self._process


TICK = 0.5
_PROGRESS_EVERY = 0.2


def deliver_session(
    folder: Path,
    tracking_uri: str | None = None,
    linger: float = 600.0,
    on_progress: Callable[[DeliveryReport], None] | None = None,
    outlets: OutletSettings = NO_OUTLETS,
) -> DeliveryReport:
    """Deliver what a session has recorded so far; `on_progress` is called now and then."""
    session = SessionDelivery(folder, tracking_uri, MemoryWatch().has_killed, outlets)
    if not session.claim.take():
        return session.report(busy=True)
    shown = 0.0
    try:
        while True:
            moved = session.advance()
            now = time.monotonic()
            if on_progress is not None and now - shown >= _PROGRESS_EVERY:
                on_progress(session.report())
                shown = now
            if session.over:
                session.remove()
                break
            if given_up(session, linger) or (session.alive and not moved and session.caught_up):
                break
            if not moved:
                time.sleep(min(TICK, session.seconds_to_wait()))
    finally:
        session.claim.release()
    return session.report()


def given_up(session: SessionDelivery, linger: float) -> bool:
    """Whether the rest cannot be delivered at all, or could not be for a long time."""
    since = session.stuck_since()
    return since is not None and (session.hopeless or time.monotonic() - since > linger)


LOOK = 0.5  # seconds between two looks at the progress


def deliver_many(
    sessions: Sequence[Path], tracking_uri: str | None, linger: float, jobs: int
) -> Generator[DeliveryReport | None, None, None]:
    """Deliver these sessions in processes, `jobs` at once; yield a report as each ends, None at each look."""
    # Not by fork: this process has connections to the store, and threads of the terminal.
    fresh = multiprocessing.get_context("spawn")
    nobody_writes, lifeline = fresh.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(jobs, len(sessions)), fresh, _begin_worker, (nobody_writes,))
    try:
        running: dict[Future[DeliveryReport], Path] = {
            pool.submit(deliver_session, session, tracking_uri, linger): session for session in sessions
        }
        while running:
            done, _ = wait(running, LOOK, FIRST_COMPLETED)
            for future in done:
                folder = running.pop(future)
                error = future.exception()
                yield DeliveryReport(folder, remaining=1, error=str(error)) if error is not None else future.result()
            if not done:
                yield None
    finally:
        lifeline.close()  # everything is reported: do not wait for libraries that end slowly
        pool.shutdown(cancel_futures=True)


def _begin_worker(lifeline: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which then lets this one go
    threading.Thread(target=_end_with, args=(lifeline,), name="mlflow-stability-lifeline", daemon=True).start()
    ask_for_short_requests()


def _end_with(lifeline: Connection) -> None:
    """End this process with the one at the other end; a courier may end at any moment."""
    lifeline.poll(None)
    os._exit(1)


def waits_for_its_process(session: Path) -> bool:
    """Whether a delivered session is kept for a process that cannot be asked whether it has ended."""
    if not was_delivered(session) or (session / RELEASED).exists():
        return False
    return not process_of(session).has_ended()


def waiting_bytes(session: Path, size: int) -> int:
    """Return how much of a session has not arrived yet; all of it if no courier has begun."""
    if not session.exists():
        return 0
    waiting = read_page(session / STATUS).get("waiting_records")
    return int(waiting) if isinstance(waiting, (int, float)) else size


LINGER = 600.0
_ORPHAN_LINGER = 30.0
_LOOK_EVERY = 30.0
_NICE = 10
_logger = logging.getLogger("mlflow_stability.courier")


def main(folder: Path) -> int:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(_NICE)
    ask_for_short_requests()
    sys.stdout = sys.stderr = _RedactingStream(sys.stderr)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    outlets = pop_from_environment()  # at once: child processes must not inherit it
    session = SessionDelivery(folder, os.environ.get("MLFLOW_TRACKING_URI"), MemoryWatch().has_killed, outlets)
    if not session.claim.take():
        return 0
    session.say("starting")
    left_behind = outlets.left_behind()
    if not follow(session, left_behind):
        return 1
    deliver_orphans(folder, left_behind)
    return 0


def follow(session: SessionDelivery, left_behind: OutletSettings) -> bool:
    """Deliver a session to its end; False if something could not be delivered."""
    last_error = ""
    orphans = OrphanDelivery(session.folder, left_behind)
    while not session.claim.is_taken():
        moved = session.advance()
        if not gc.isenabled():
            gc.freeze()  # modules loaded to open a run stay to the end
            gc.enable()
        error = session.report().error
        if error != last_error:
            _logger.warning("%s", error or "Delivering again.")
            last_error = error
        if session.over:
            session.remove()
            return True
        if not session.alive and given_up(session, LINGER):
            session.claim.release()
            return False
        if not moved:
            if session.alive and not error:
                orphans.look()
            time.sleep(min(TICK, session.seconds_to_wait()))
    return False


class OrphanDelivery:
    """Starts couriers for abandoned sessions during training, one after the other."""

    def __init__(self, own: Path, outlets: OutletSettings) -> None:
        self._own = own
        self._outlets = outlets
        self._tried: set[Path] = set()
        self._helper: subprocess.Popen[bytes] | None = None
        self._look_at = 0.0

    def look(self) -> None:
        """Start the next one, if no other is running."""
        now = time.monotonic()
        if now < self._look_at or (self._helper is not None and self._helper.poll() is None):
            return
        self._look_at = now + _LOOK_EVERY
        orphan = next_orphan(self._own.parent, self._own, os.environ.get("MLFLOW_TRACKING_URI"), self._tried)
        if orphan is not None:
            self._tried.add(orphan)
            self._helper = subprocess.Popen(
                [sys.executable, "-m", "mlflow_stability.courier", str(orphan)],
                env={**os.environ, OUTLETS_VARIABLE: self._outlets.text()},
            )


def deliver_orphans(own: Path, outlets: OutletSettings) -> None:
    """Deliver the abandoned sessions, one after the other."""
    tried: set[Path] = set()
    while (orphan := next_orphan(own.parent, own, os.environ.get("MLFLOW_TRACKING_URI"), tried)) is not None:
        tried.add(orphan)
        report = deliver_session(orphan, os.environ.get("MLFLOW_TRACKING_URI"), _ORPHAN_LINGER, outlets=outlets)
        if report.error:
            _logger.warning("%s was not delivered: %s", orphan.name, report.error)


class _RedactingStream:
    """Removes credentials from all output: of MLflow, its drivers, tracebacks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(without_credentials(text))

    def flush(self) -> None:
        self._stream.flush()


YOUNGEST = 3600.0
"""Seconds; newer folders are never removed for their size, as a training that cannot be asked may still run."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A folder that no delivery needs any more."""

    folder: Path
    size: int
    changed: float  # last write of its training; those of couriers do not count


def leftovers(directory: Path) -> list[Leftover]:
    """Return all of them below a folder, oldest first."""
    measured = [_measure(folder) for root in journal_roots_below(directory) for folder in _finished_folders(root)]
    return sorted(measured, key=lambda leftover: leftover.changed)


def clean_up(directory: Path, older_than: float | None = None, largest: int | None = None) -> list[Leftover]:
    """Remove leftovers older than `older_than` seconds, then the oldest until at most `largest` bytes are left."""
    left, removed = leftovers(directory), []
    now = time.time()
    if older_than is not None:
        removed = [leftover for leftover in left if now - leftover.changed > older_than]
    if largest is not None:
        total = size_of(directory) - sum(leftover.size for leftover in removed)
        for leftover in left:
            if total > largest and leftover not in removed and now - leftover.changed > YOUNGEST:
                removed.append(leftover)
                total -= leftover.size
    for leftover in removed:
        shutil.rmtree(leftover.folder, ignore_errors=True)
        root = leftover.folder.parent
        if root.name in KEPT_FOLDERS:
            with suppress(OSError):  # not empty, or removed with another leftover
                root.rmdir()
            root = root.parent
        remove_empty_root(root)
    return removed


def size_of(directory: Path) -> int:
    """Return the size of all journals below a folder."""
    return sum(_measure(root).size for root in journal_roots_below(directory))


def _finished_folders(root: Path) -> Iterator[Path]:
    sessions = [session for session in session_folders(root) if is_session(session)]
    awaited = [session for session in sessions if not _is_over(session)]
    needed = {recording.name.partition("-")[2] for session in awaited for recording in recording_folders(session)}
    yield from (session for session in sessions if session not in awaited)
    for kind in sorted(KEPT_FOLDERS):
        for folder in sorted((root / kind).glob("*/")):
            if folder.name not in needed and not owner_lives(read_owner(folder)):
                yield folder


def _is_over(session: Path) -> bool:
    """Whether a session is delivered, and no process is known to work on it."""
    if holder_lives(session) or not was_delivered(session):
        return False
    return (session / RELEASED).exists() or not process_of(session).alive()


def _measure(folder: Path) -> Leftover:
    size, changed, is_of_session = 0, 0.0, is_session(folder)
    for file in folder.rglob("*"):
        try:
            stat = file.lstat()
        except FileNotFoundError:  # just delivered and removed by its courier
            continue
        if not file.is_dir():
            size += stat.st_size
            if file.name == JOURNAL or not is_of_session:
                changed = max(changed, stat.st_mtime)
    return Leftover(folder, size, changed or folder.stat().st_mtime)
