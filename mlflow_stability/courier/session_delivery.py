"""Deliver the recordings of one training process; new ones are found as they appear.

Nothing here waits: `advance` delivers a portion and returns whether there was any.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow_stability.alerts.alert import NO_OUTLETS, OutletSettings
from mlflow_stability.courier.processes import Claim, RankProcesses, TrainingProcess, process_of
from mlflow_stability.courier.progress import CourierStatus, StatusPage
from mlflow_stability.courier.recording import Recording
from mlflow_stability.courier.sinks.sink import outlet_plan
from mlflow_stability.journal.layout import RELEASED, flush_asked, recording_folders, remove_empty_root

_WORTH_SAYING = 2.0  # seconds for which the store must be away before anybody hears of it
_MOST_NOTICES = 20
_LAST_LOOK = 0.25  # seconds; several of the looks of a training that waits


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    session: Path
    run_ids: tuple[str, ...] = ()
    delivered: int = 0
    """Recordings that have arrived completely."""
    remaining: int = 0
    """Recordings that have not."""
    waiting_bytes: int = 0
    """Bytes of their journals that have not arrived."""
    refused: tuple[str, ...] = ()
    """What the store would not take."""
    error: str = ""
    """Why something remains, in one sentence."""
    busy: bool = False
    """A living courier delivers this session already."""
    kept_for: str = ""
    """The process that cannot be asked whether it has ended, so that the journal is kept."""


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
        self._flush_asked = self._flushed = 0
        """Number of the last flush request, and of the last one answered."""

    @property
    def over(self) -> bool:
        """Whether nothing more will be recorded, and everything has arrived."""
        ended = not self.alive or (self.folder / RELEASED).exists()
        return (
            ended and self._settled and all(recording.gone or recording.kept for recording in self._recordings.values())
        )

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
        self._look_for_flush()
        moved = False
        for recording in self._recordings.values():
            moved |= recording.advance(self.alive, self._killed_for_memory)
        if all(recording.flushed for recording in self._recordings.values()):
            self._flushed = self._flush_asked
        self._settled = True
        self._page.show(replace(self._status(moved), notices=tuple(self._notices[-_MOST_NOTICES:])))
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

    def _status(self, moved: bool) -> CourierStatus:
        report = self.report()
        since = self.stuck_since()
        stuck_for = 0.0 if since is None else time.monotonic() - since
        if since is not None and stuck_for >= _WORTH_SAYING:
            away = round(time.time() - stuck_for)
            state, error = "waiting", report.error
        else:
            state, away, error = "delivering" if moved or not self.caught_up else "idle", None, ""
        left = tuple(dict.fromkeys(word for recording in self._recordings.values() for word in recording.left))
        return CourierStatus(
            state, report.waiting_bytes, away, error, report.refused, left, self._flushed, self._runs()
        )

    def _runs(self) -> dict[str, dict[str, str]]:
        every = (recording.delivered for recording in self._recordings.values())
        return {delivered.folder.name: delivered.run() for delivered in every if delivered.run_id}

    def _look_for_flush(self) -> None:
        asked = flush_asked(self.folder)
        if asked > self._flush_asked:
            self._flush_asked = asked
            for recording in self._recordings.values():
                recording.flush()

    def _the_process(self) -> TrainingProcess:
        if self._process is None or self._process.identity is None:
            self._process = process_of(self.folder)
        return self._process
