"""Deliver one recording, from its first line to the end of its run.

Guarantees: the folder is removed when, and only when, everything has arrived and no process can write into it any more;
without a store nothing is read into memory.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mlflow_stability.alerts.message import RunLink
from mlflow_stability.courier.journal_reader import JournalReader
from mlflow_stability.courier.open_recording import OpenRecording
from mlflow_stability.courier.processes import TrainingProcess, TrainingState
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.run.finish import RankProcesses
from mlflow_stability.courier.run.run_opening import EarlierRecordings
from mlflow_stability.courier.sinks.outlets import Outlets
from mlflow_stability.courier.sinks.sink import Backoff, OutletPlan
from mlflow_stability.errors import StabilityError
from mlflow_stability.journal.follower import is_deleted, journal_size, opening_if_readable, opening_of
from mlflow_stability.journal.layout import read_page
from mlflow_stability.journal.writer import FINAL_STATUS
from mlflow_stability.tracking.address import tracking_uri_for
from mlflow_stability.tracking.client import run_page

NO_OUTLETS = OutletPlan()


class Recording:
    def __init__(
        self,
        folder: Path,
        process: TrainingProcess,
        tracking_uri: str | None,
        plan: OutletPlan = NO_OUTLETS,
        ranks: RankProcesses | None = None,
        before: Sequence[Recording] = (),
    ) -> None:
        """`before`: earlier recordings of the same session."""
        self.folder = folder
        self.gone = False  # everything has arrived and the folder was removed
        self.kept = False  # everything has arrived, and the folder stays: its process may continue
        self._process = process
        self._given_uri = tracking_uri
        self.delivered = Delivered.read(folder)
        self._patience = Backoff()
        self._reader = JournalReader(folder)
        self._last_words: dict[str, Any] = {}
        self._open: OpenRecording | None = None
        self._plan = plan
        self._ranks = ranks
        self._outlets: Outlets | None = None
        self._flush_asked = False
        self._before = before
        self._earlier = EarlierRecordings()

    @property
    def complete(self) -> bool:
        """Whether everything has arrived; the run's status may still wait for the end of the process."""
        return self.gone or self.delivered.complete

    @property
    def concluded(self) -> bool:
        """Whether its end and outcome are in its run."""
        return self.complete or self.kept or (self._open is not None and self._open.concluded)

    @property
    def caught_up(self) -> bool:
        """Whether there is nothing to do before more is recorded."""
        if self.complete:
            return self.gone or self._open is None or self._open.metrics.filled
        return self.waiting_bytes() == 0 and not (self._open and self._open.over)

    @property
    def left(self) -> list[str]:
        """What has not arrived yet, once nothing more is recorded."""
        if self.complete:
            return []
        return self._open.left if self._open else ["everything"]

    @property
    def flushed(self) -> bool:
        """Whether everything recorded before the last `flush` has arrived."""
        return self.complete or (self._open is not None and not self._flush_asked and self._open.flushed)

    def flush(self) -> None:
        """Deliver at once what was recorded so far."""
        self._flush_asked = True

    @property
    def refused(self) -> list[str]:
        return sorted(self._open.writer.refused) if self._open else []

    @property
    def troubles(self) -> list[Backoff]:
        own = [self._patience] if self._patience.error else []
        return own + (self._open.troubles if self._open else [])

    def waiting_bytes(self) -> int:
        if self.gone:
            return 0
        return self._open.waiting_bytes() if self._open else journal_size(self.folder)

    def seconds_to_wait(self) -> float:
        return self._open.seconds_to_wait() if self._open else float("inf")

    def advance(self, alive: bool, killed_for_memory: Callable[[], bool]) -> bool:
        """Deliver a portion; False if there was nothing to do. `alive`: training may still append."""
        if self.gone or self.kept:
            return False
        state = self._state(alive, killed_for_memory)
        moved = self._reader.advance()
        moved |= self._flush_outlets(state)
        if self._open is None:
            return self._begin(alive) or moved
        if self._flush_asked:
            self._flush_asked = False
            self._open.hurry()
        moved |= self._open.flush(state)
        if self._open.finished and (self._outlets is None or self._outlets.done):
            self._remove_if_over(self._open.over)
        return moved

    def _state(self, alive: bool, killed_for_memory: Callable[[], bool]) -> TrainingState:
        deleted = is_deleted(self.folder)
        if not deleted:
            self._last_words = read_page(self.folder / FINAL_STATUS)
        stalled = self._open.events.story.stalled if self._open else None
        return TrainingState(alive, killed_for_memory, self._last_words, deleted, stalled)

    def _flush_outlets(self, state: TrainingState) -> bool:
        """Outlets do not wait for the store: their messages matter most while it is away."""
        if self._outlets is None and self._plan.settings:
            opening = opening_if_readable(self.folder)
            if opening is not None:
                self._outlets = Outlets(self._plan, self.delivered, opening)
                self._reader.add(*self._outlets.sinks)
        return self._outlets is not None and self._outlets.flush(state)

    def _begin(self, alive: bool) -> bool:
        if not self._patience.ready(time.monotonic()):
            return False
        try:
            opening = opening_of(self.folder)
            if opening is None:
                if not alive:  # it was killed before it had recorded anything
                    self._remove_if_over(said_so=False)
                return False
            uri = tracking_uri_for(opening.tracking_uri, opening.directory, self._given_uri)
            undelivered = [recording.delivered.recording for recording in self._before if not recording.concluded]
            if self.delivered.number is None and self._earlier.awaited(opening, uri, undelivered):
                return False
            self._before = ()
            self._open = OpenRecording(
                opening,
                self.delivered,
                uri,
                self._process,
                self._reader,
                lambda: self._outlets is not None and self._outlets.awaited,
                self._ranks,
            )
            if self._outlets is not None:
                self._outlets.link(partial(_link, self._open.writer.run_id, uri))
        except StabilityError as error:
            self._patience.failed(error, time.monotonic())
            return False
        self._patience.succeeded()
        return True

    def _remove_if_over(self, said_so: bool) -> None:
        if not said_so and not self._process.has_ended():
            self.kept = True
            return
        self.gone = True
        shutil.rmtree(self.folder, ignore_errors=True)


def _link(run_id: str, uri: str) -> RunLink:
    """Return a link to the run, without a page if the store is a file."""
    try:
        page = run_page(run_id, uri)
    except StabilityError:
        return RunLink(run_id)
    return RunLink(run_id, page.name, "" if page.command else page.url)
