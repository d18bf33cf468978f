"""The processes of a session: the training that appends to its journal, and the one courier that delivers it.

Guarantees: `has_ended` is true only of a training that is certainly gone. One that cannot be asked is `alive` while it
writes; when it is silent, its data is delivered and its journal kept, as it may continue. One living courier holds the
claim; that of a killed one is taken over. A short overlap is harmless, because everything may be delivered twice.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from mlflow_stability.journal.follower import opening_if_readable
from mlflow_stability.journal.layout import COURIER, STATUS, TRAINING, read_page, recording_folders, session_folders
from mlflow_stability.journal.process_identity import (
    ProcessIdentity,
    ProcessStatus,
    identity_from,
    identity_in_link,
    own_identity,
    process_status,
)
from mlflow_stability.journal.writer import JOURNAL, closing_from_page
from mlflow_stability.tracking.address import default_uri, same_store
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing, Opening

_SILENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    identity: ProcessIdentity | None
    """None: the journal does not say which."""
    folder: Path
    """Its session."""

    def has_ended(self) -> bool:
        """Whether it will certainly not append any more."""
        return self._life() is ProcessStatus.GONE

    def alive(self) -> bool:
        """Whether it may still append, as far as known."""
        life = self._life()
        if life is ProcessStatus.UNKNOWN:
            journals = [folder / JOURNAL for folder in recording_folders(self.folder)]
            last_written = max(map(written_at, journals), default=0.0)
            return abs(time.time() - last_written) < _SILENT_SECONDS
        return life is ProcessStatus.LIVES

    def command(self) -> list[str]:
        """Return its command line; empty if it cannot be asked."""
        if self.identity is None or not self.identity.is_neighbour or self._life() is not ProcessStatus.LIVES:
            return []
        try:
            return psutil.Process(self.identity.pid).cmdline()
        except psutil.Error:
            return []

    def named(self) -> str:
        return "unknown process" if self.identity is None else f"process {self.identity.pid} on {self.identity.host}"

    def _life(self) -> ProcessStatus:
        return ProcessStatus.UNKNOWN if self.identity is None else process_status(self.identity)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """State of a training at one moment; its journal is read afterwards."""

    alive: bool
    """It may still append to its journal."""
    killed_for_memory: Callable[[], bool]
    last_words: Mapping[str, Any] = field(default_factory=dict)
    """What it could not write into its journal."""
    journal_deleted: bool = False
    stalled: Finding | None = None
    """Set while it hangs."""

    @property
    def closing(self) -> Closing | None:
        """How the training ended by its own report, if the journal had no room for it."""
        return closing_from_page(self.last_words)


def process_of(folder: Path, opening: Opening | None = None) -> TrainingProcess:
    """Return the process of a session; journals of older versions name it in the first record, `opening` or another."""
    identity = identity_from(identity_in_link(folder / TRAINING))
    if identity is None:
        openings = (opening_if_readable(recording) for recording in recording_folders(folder))
        opening = opening or next((readable for readable in openings if readable is not None), None)
        if opening is not None:
            identity = ProcessIdentity(opening.pid, opening.host, started=opening.process_started)
    return TrainingProcess(identity, folder)


def written_at(file: Path) -> float:
    """Return when a file or link was last written; 0 if it is gone, as after its delivery."""
    try:
        return file.lstat().st_mtime
    except OSError:
        return 0.0


_COUNT = re.compile(r"^oom_kill (\d+)", re.MULTILINE)


class MemoryWatch:
    """Counts out-of-memory kills in our own cgroup, which training shares, or in the whole system."""

    def __init__(self) -> None:
        self._page = next((page for page in _pages() if _count(page) is not None), None)
        self._before = _count(self._page) or 0

    def has_killed(self) -> bool:
        return (_count(self._page) or 0) > self._before


def _pages() -> list[Path]:
    try:
        own = Path("/proc/self/cgroup").read_text()
    except OSError:
        return []
    pages = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            pages.append(Path("/sys/fs/cgroup" + path) / "memory.events")
        elif "memory" in controllers.split(","):
            pages.append(Path("/sys/fs/cgroup/memory" + path) / "memory.oom_control")
    return [*pages, Path("/proc/vmstat")]


def _count(page: Path | None) -> int | None:
    if page is None:
        return None
    try:
        match = _COUNT.search(page.read_text())
    except OSError:
        return None
    return int(match[1]) if match else None


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
