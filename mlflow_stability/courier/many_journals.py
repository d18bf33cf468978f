"""Delivers the journals of many trainings: sessions below a folder, several at once.

In: folders of sessions. Out: a report of each, as it ends. Guarantees: what `deliver_session` guarantees for each; one
that fails stops no other; after an interruption the next call goes on where this one stopped.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.courier.process.environment import ask_for_short_requests
from mlflow_stability.courier.progress import read_page
from mlflow_stability.courier.session_delivery import DeliveryReport
from mlflow_stability.journal.layout import STATUS

LOOK = 0.5
"""Seconds between two looks at how far the deliveries are."""


def deliver_many(
    sessions: Sequence[Path], tracking_uri: str | None, linger: float, jobs: int
) -> Iterator[DeliveryReport | None]:
    """Deliver these sessions, `jobs` at once, in processes of their own; a report as each ends, None at each look."""
    # Not by fork: this process has connections to the store, and threads of the terminal.
    fresh = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(sessions)), fresh, ask_for_short_requests)
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
        pool.shutdown(cancel_futures=True)


def waiting_bytes(session: Path, size: int) -> int:
    """How much of a session has not arrived yet, as its courier says; all of it where none has begun."""
    if not session.exists():
        return 0
    said = read_page(session / STATUS).get("waiting_records")
    return int(said) if isinstance(said, (int, float)) else size
