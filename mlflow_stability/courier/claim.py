"""The claim that gives a session exactly one courier, and abandoned sessions.

Guarantees: one living courier holds the claim; that of a killed one is taken over. A short overlap is harmless, because
everything may be delivered twice.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from mlflow_stability.courier.training_process import process_of, written_at
from mlflow_stability.journal.follower import opening_if_readable
from mlflow_stability.journal.layout import COURIER, STATUS, read_page, recording_folders, session_folders
from mlflow_stability.journal.process_identity import (
    ProcessStatus,
    identity_from,
    identity_in_link,
    own_identity,
    process_status,
)
from mlflow_stability.journal.writer import JOURNAL
from mlflow_stability.tracking.address import default_uri, same_store

_SILENT_SECONDS = 60.0
_SETTLE_SECONDS = 0.2


class Claim:
    def __init__(self, folder: Path) -> None:
        self._file = folder / COURIER
        me = own_identity()
        if me.boot:  # tells the machine too; a claim must be so short that it fits on a full disk
            me = replace(me, host="", machine="")
        self._mine = {**me.as_json(), "claim": time.time_ns()}

    def take(self) -> bool:
        """Claim the session; False if a living courier has it."""
        if self._create():
            return True
        if holder_lives(self._file.parent):
            return False
        self._file.unlink(missing_ok=True)
        if not self._create():
            return False
        time.sleep(_SETTLE_SECONDS)
        return self.holds()

    def holds(self) -> bool:
        return identity_in_link(self._file) == self._mine

    def is_taken(self) -> bool:
        """Whether another courier has the session; never if the folder was deleted."""
        return identity_in_link(self._file) not in (self._mine, {})

    def release(self) -> None:
        if self.holds():
            self._file.unlink(missing_ok=True)

    def _create(self) -> bool:
        try:
            self._file.symlink_to(json.dumps(self._mine, separators=(",", ":")))
        except FileExistsError:
            return False
        return True


def holder_lives(folder: Path) -> bool:
    """Whether a courier is delivering this session."""
    file = folder / COURIER
    holder = identity_from(identity_in_link(file))
    if holder is None:
        return False
    life = process_status(holder)
    if life is ProcessStatus.UNKNOWN:
        return abs(time.time() - max(written_at(file), written_at(folder / STATUS))) < _SILENT_SECONDS
    return life is ProcessStatus.LIVES


def next_orphan(root: Path, own: Path, tracking_uri: str | None, not_again: set[Path]) -> Path | None:
    """Return a session to deliver beside our own, or None."""
    store = tracking_uri or default_uri("")
    for folder in session_folders(root):
        if folder != own and folder not in not_again and _is_orphan(folder, store):
            return folder
    return None


def _is_orphan(folder: Path, tracking_uri: str) -> bool:
    openings = [opening_if_readable(recording) for recording in recording_folders(folder)]
    readable = [opening for opening in openings if opening is not None]
    if not readable or len(readable) < len(openings) or holder_lives(folder):
        return False
    process = process_of(folder, readable[0])
    if process.alive() or (not process.has_ended() and was_delivered(folder)):
        return False
    stores = [opening.tracking_uri or default_uri(opening.directory) for opening in readable]
    return all(same_store(uri, tracking_uri, opening.directory) for uri, opening in zip(stores, readable, strict=True))


def was_delivered(folder: Path) -> bool:
    """Whether everything written so far has arrived, and the journal is kept for what may come."""
    page = folder / STATUS
    if read_page(page).get("state") != "done":
        return False
    return all((recording / JOURNAL).stat().st_mtime <= page.stat().st_mtime for recording in recording_folders(folder))
