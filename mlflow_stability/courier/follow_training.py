"""The courier process from start to end.

It follows the journal of one training process and lives a little longer than that. It ignores Ctrl-C and hang-ups,
which are meant for the training, and has a low priority. Afterwards it delivers abandoned sessions of the same journal
directory. It never imports torch.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from mlflow_stability.alerts.outlet_settings import OUTLETS_VARIABLE, OutletSettings, pop_from_environment
from mlflow_stability.courier.claim import next_orphan
from mlflow_stability.courier.deliver import TICK, ask_for_short_requests, deliver_session, given_up
from mlflow_stability.courier.session_delivery import SessionDelivery
from mlflow_stability.courier.training_process import MemoryWatch
from mlflow_stability.tracking.address import without_credentials

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
