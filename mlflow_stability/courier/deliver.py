"""Delivers a session: the one call for the courier, for `sync` and for the next start.

In: a session's folder. Out: a report. Guarantees: what had arrived before is not sent again; a session that a living
courier has is left alone; the call ends when everything has arrived, or when the store has been away for `linger`
seconds after the end of training, and then the journal stays.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.connection import Connection
from pathlib import Path

from mlflow_stability.alerts.outlet_settings import OutletSettings
from mlflow_stability.courier.process.claim import was_delivered
from mlflow_stability.courier.process.environment import ask_for_short_requests
from mlflow_stability.courier.process.training_process import MemoryWatch, process_of
from mlflow_stability.courier.progress import read_page
from mlflow_stability.courier.recording import NO_OUTLETS
from mlflow_stability.courier.session_delivery import DeliveryReport, SessionDelivery
from mlflow_stability.journal.follower import opening_if_readable
from mlflow_stability.journal.layout import RELEASED, STATUS, recording_folders

TICK = 0.5
_PROGRESS_EVERY = 0.2


def deliver_session(
    folder: Path,
    tracking_uri: str | None = None,
    linger: float = 600.0,
    on_progress: Callable[[DeliveryReport], None] | None = None,
    outlets: OutletSettings = NO_OUTLETS.settings,
) -> DeliveryReport:
    """Deliver what a session has recorded so far; `on_progress` is called now and then with the report as it stands."""
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
    """Whether what is left cannot be delivered at all, or could not be for a long time."""
    since = session.stuck_since()
    return since is not None and (session.hopeless or time.monotonic() - since > linger)


LOOK = 0.5
"""Seconds between two looks at how far the deliveries are."""


def deliver_many(
    sessions: Sequence[Path], tracking_uri: str | None, linger: float, jobs: int
) -> Generator[DeliveryReport | None, None, None]:
    """Deliver these sessions, `jobs` at once, in processes of their own; a report as each ends, None at each look."""
    # Not by fork: this process has connections to the store, and threads of the terminal.
    fresh = multiprocessing.get_context("spawn")
    nobody_writes, lifeline = fresh.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(jobs, len(sessions)), fresh, _begin_worker, (nobody_writes,))
    try:
        running: dict[Future[DeliveryReport], Path] = {
            pool.submit(deliver_session, each, tracking_uri, linger): each for each in sessions
        }
        while running:
            done, _ = wait(running, LOOK, FIRST_COMPLETED)
            for each in done:
                folder = running.pop(each)
                error = each.exception()
                yield DeliveryReport(folder, remaining=1, error=str(error)) if error is not None else each.result()
            if not done:
                yield None
    finally:
        lifeline.close()  # all that was to be told is told: nobody waits for libraries that take their time to end
        pool.shutdown(cancel_futures=True)


def _begin_worker(lifeline: Connection) -> None:
    """Runs first in each process that delivers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which then lets this one go
    threading.Thread(target=_end_with, args=(lifeline,), name="mlflow-stability-lifeline", daemon=True).start()
    ask_for_short_requests()


def _end_with(lifeline: Connection) -> None:
    """End this process when the one at the other end has closed it, or is gone; a courier may end at any moment."""
    lifeline.poll(None)
    os._exit(1)


def waits_for_its_process(session: Path) -> bool:
    """Whether all of a session has arrived, and it is kept for a process that cannot be asked whether it has ended."""
    if not was_delivered(session) or (session / RELEASED).exists():
        return False
    opening = next(filter(None, map(opening_if_readable, recording_folders(session))), None)
    return not process_of(session, opening).has_ended()


def waiting_bytes(session: Path, size: int) -> int:
    """How much of a session has not arrived yet, as its courier says; all of it where none has begun."""
    if not session.exists():
        return 0
    said = read_page(session / STATUS).get("waiting_records")
    return int(said) if isinstance(said, (int, float)) else size
