"""Deliver a session: called by the courier, by `sync` and at the next start.

Guarantees: nothing is sent twice; a session of a living courier is left alone. Delivery ends when everything has
arrived, or when the store was away for `linger` seconds after the end of training; then the journal stays.
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
from mlflow_stability.courier.claim import was_delivered
from mlflow_stability.courier.recording import NO_OUTLETS
from mlflow_stability.courier.session_delivery import DeliveryReport, SessionDelivery
from mlflow_stability.courier.training_process import MemoryWatch, process_of
from mlflow_stability.journal.layout import RELEASED, STATUS, read_page

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


TICK = 0.5
_PROGRESS_EVERY = 0.2


def deliver_session(
    folder: Path,
    tracking_uri: str | None = None,
    linger: float = 600.0,
    on_progress: Callable[[DeliveryReport], None] | None = None,
    outlets: OutletSettings = NO_OUTLETS.settings,
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
    """Runs first in each worker."""
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
