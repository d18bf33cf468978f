"""Delivers the recordings of one training process.

In: a session's folder. Out: its recordings in their runs, and an empty folder. New recordings are taken up as they
appear. Nothing here waits: `advance` does a bite of work and says whether there was any.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow_stability.alerts.outlet_settings import OutletSettings
from mlflow_stability.courier.process.claim import Claim
from mlflow_stability.courier.process.rank_processes import RankProcesses
from mlflow_stability.courier.process.training_process import TrainingProcess, process_of
from mlflow_stability.courier.progress import CourierStatus, StatusPage
from mlflow_stability.courier.recording import NO_OUTLETS, Recording
from mlflow_stability.courier.sinks.outlet import outlet_plan
from mlflow_stability.journal.follower import opening_if_readable
from mlflow_stability.journal.layout import RELEASED, flush_asked, recording_folders, remove_empty_root
from mlflow_stability.vocabulary.run import Opening

_WORTH_SAYING = 2.0  # seconds for which the store must be away before anybody hears of it
_MOST_NOTICES = 20
_LAST_LOOK = 0.25  # seconds; several of the looks of a training that waits


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """The result of the delivery of a session."""

    session: Path
    run_ids: tuple[str, ...] = ()
    """The runs that its recordings went to."""
    delivered: int = 0
    """Recordings of which everything has arrived."""
    remaining: int = 0
    """Recordings of which something has not."""
    waiting_bytes: int = 0
    """How much of their journals that is."""
    refused: tuple[str, ...] = ()
    """What the store would not take."""
    error: str = ""
    """Why something remains, in one sentence."""
    busy: bool = False
    """A living courier delivers this session already."""
    kept_for: str = ""
    """The process that cannot be asked whether it has ended, so that the journal stays though all has arrived."""


class SessionDelivery:
    """One session on its way."""

    def __init__(
        self,
        folder: Path,
        tracking_uri: str | None,
        killed_for_memory: Callable[[], bool],
        outlets: OutletSettings = NO_OUTLETS.settings,
    ) -> None:
        self.folder = folder
        self.claim = Claim(folder)
        self.alive = True
        """Whether the training may still append."""
        self._uri = tracking_uri
        self._killed_for_memory = killed_for_memory
        self._page = StatusPage(folder)
        self._recordings: dict[Path, Recording] = {}
        self._process: TrainingProcess | None = None
        self._settled = False
        self._notices: list[str] = []
        self._ranks = RankProcesses(folder)
        self._plan = outlet_plan(outlets, self._notices.append)
        self._flush_asked = self._flushed = 0
        """The number of the last request to deliver everything, and of the last one that was answered."""

    @property
    def over(self) -> bool:
        """Nothing more will be recorded, and everything has arrived."""
        ended = not self.alive or (self.folder / RELEASED).exists()
        return ended and self._settled and all(each.gone or each.kept for each in self._recordings.values())

    @property
    def caught_up(self) -> bool:
        """Everything that was recorded so far has arrived."""
        return all(each.caught_up for each in self._recordings.values())

    def advance(self) -> bool:
        """A bite of work for each recording; False if there was nothing to do."""
        self._ranks.look()
        self.alive = self._training_lives()
        # Looked for after that question: a recording that began before the end is found, whatever happened between.
        for folder in recording_folders(self.folder):
            if folder not in self._recordings:
                before = tuple(self._recordings.values())
                process = self._the_process()
                self._recordings[folder] = Recording(folder, process, self._uri, self._plan, self._ranks, before)
        self._look_for_flush()
        moved = False
        for recording in self._recordings.values():
            moved |= recording.advance(self.alive, self._killed_for_memory)
        if all(each.flushed for each in self._recordings.values()):
            self._flushed = self._flush_asked
        self._settled = True
        self._page.show(replace(self._status(moved), notices=tuple(self._notices[-_MOST_NOTICES:])))
        return moved

    def seconds_to_wait(self) -> float:
        """When to come back, at the latest."""
        return min((each.seconds_to_wait() for each in self._recordings.values()), default=float("inf"))

    def say(self, state: str) -> None:
        """Show a state that is not about the recordings."""
        self._page.show(CourierStatus(state, flushed=self._flushed, runs=self._runs()))

    def stuck_since(self) -> float | None:
        """Since when (by the monotonic clock) the store does not take something."""
        since = [each.since for recording in self._recordings.values() for each in recording.troubles]
        return min((each for each in since if each is not None), default=None)

    @property
    def hopeless(self) -> bool:
        """Nothing that is left can be delivered, however often it is tried."""
        left = [each for each in self._recordings.values() if not each.gone]
        return bool(left) and all(any(trouble.hopeless for trouble in each.troubles) for each in left)

    def report(self, busy: bool = False) -> DeliveryReport:
        """What has become of the session so far."""
        recordings = list(self._recordings.values())
        troubles = [trouble.error for each in recordings for trouble in each.troubles]
        return DeliveryReport(
            self.folder,
            tuple(dict.fromkeys(each.run_id for each in recordings if each.run_id)),
            sum(each.gone or each.kept for each in recordings),
            sum(not each.gone and not each.kept for each in recordings),
            sum(each.waiting_bytes() for each in recordings),
            tuple(sorted({key for each in recordings for key in each.refused})),
            troubles[0] if troubles else "",
            busy,
            self._the_process().named() if any(each.kept for each in recordings) else "",
        )

    def remove(self) -> None:
        """Leave no trace, where nobody can write here any more: everything has arrived."""
        self.say("done")
        ended = self._the_process().has_ended()
        if ended or (self.folder / RELEASED).exists():
            if not ended:  # who waits for us looks now and then which run it is
                time.sleep(_LAST_LOOK)
            shutil.rmtree(self.folder, ignore_errors=True)
            remove_empty_root(self.folder.parent)

    def _status(self, moved: bool) -> CourierStatus:
        report = self.report()
        since = self.stuck_since()
        stuck_for = 0.0 if since is None else time.monotonic() - since
        if since is not None and stuck_for >= _WORTH_SAYING:
            away = round(time.time() - stuck_for)
            state, error = "waiting", report.error
        else:
            state, away, error = "delivering" if moved or not self.caught_up else "idle", None, ""
        left = tuple(dict.fromkeys(word for each in self._recordings.values() for word in each.left))
        return CourierStatus(
            state, report.waiting_bytes, away, error, report.refused, left, self._flushed, self._runs()
        )

    def _runs(self) -> dict[str, dict[str, str]]:
        return {folder.name: each.run for folder, each in self._recordings.items() if each.run_id}

    def _look_for_flush(self) -> None:
        asked = flush_asked(self.folder)
        if asked > self._flush_asked:
            self._flush_asked = asked
            for each in self._recordings.values():
                each.flush()

    def _training_lives(self) -> bool:
        return self.alive and self._the_process().alive()

    def _the_process(self) -> TrainingProcess:
        if self._process is None or self._process.identity is None:
            self._process = process_of(self.folder, self._first_opening())
        return self._process

    def _first_opening(self) -> Opening | None:
        openings = (opening_if_readable(folder) for folder in recording_folders(self.folder))
        return next((opening for opening in openings if opening is not None), None)
