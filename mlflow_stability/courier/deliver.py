"""Delivers a session: the one call for the courier, for `sync` and for the next start.

In: a session's folder. Out: a report. Guarantees: what had arrived before is not sent again; a session that a living
courier has is left alone; the call ends when everything has arrived, or when the store has been away for `linger`
seconds after the end of training, and then the journal stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mlflow_stability.alerts.outlet_settings import OutletSettings
from mlflow_stability.courier.process.out_of_memory import MemoryWatch
from mlflow_stability.courier.recording import NO_OUTLETS
from mlflow_stability.courier.session_delivery import DeliveryReport, SessionDelivery

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
