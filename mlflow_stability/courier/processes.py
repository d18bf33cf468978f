"""The processes of a session: the training that appends to its journal, its ranks, and the courier that delivers it.

Guarantees: `has_ended` is true only of a training that is certainly gone. One that cannot be asked is `alive` while it
writes; when it is silent, its data is delivered and its journal kept, as it may continue. One living courier holds the
claim; that of a killed one is taken over. A short overlap is harmless, because everything may be delivered twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from mlflow_stability.journal.journal import JOURNAL, closing_from_page, opening_if_readable
from mlflow_stability.journal.layout import (
    COURIER,
    STATUS,
    TRAINING,
    RankProcess,
    read_page,
    read_ranks,
    recording_folders,
    session_folders,
)
from mlflow_stability.journal.process_identity import (
    ProcessIdentity,
    ProcessStatus,
    identity_from,
    identity_in_link,
    own_identity,
    process_status,
)
from mlflow_stability.kinds.reported.ranks import RankDied, RankDiedFacts
from mlflow_stability.tracking.address import default_uri, same_store
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RUN_STATUS, Closing, Opening

_SILENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    identity: ProcessIdentity | None  # None: the journal does not say which
    folder: Path  # its session

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

    alive: bool  # it may still append to its journal
    killed_for_memory: Callable[[], bool]
    last_words: Mapping[str, Any] = field(default_factory=dict)  # what it could not write into its journal
    journal_deleted: bool = False
    stalled: Finding | None = None  # set while it hangs

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


@dataclass(frozen=True, slots=True)
class RankEnd:
    """A process that ended before rank 0."""

    name: str  # its rank and host
    time: float
    before: float  # seconds before the end of rank 0; 0 while that lives


class RankProcesses:
    """The processes of the ranks of one session.

    A thread waits for their ends, so that the order is right even where a launcher ends the others a moment later. Only
    processes of this machine are watched, on Linux.
    """

    def __init__(self, session: Path) -> None:
        self._session = session
        self._ended: dict[int, float] = {}  # end time by index; index 0 records
        self._ranks: list[RankProcess] = []
        self._lock = threading.Lock()

    def look(self) -> None:
        """Start waiting once the training has named them."""
        if self._ranks:
            return
        self._ranks = read_ranks(self._session)
        descriptors = {}
        for index, rank in enumerate(self._ranks):
            with contextlib.suppress(OSError, AttributeError):  # gone already, or a system without them
                descriptors[os.pidfd_open(rank.identity.pid)] = index
                if process_status(rank.identity) is not ProcessStatus.LIVES:  # its pid is of another process, or here
                    os.close(descriptors.popitem()[0])
        if descriptors:
            threading.Thread(target=self._wait, args=(descriptors,), name="ranks", daemon=True).start()

    def first_end(self) -> list[RankEnd]:
        """Return those that ended first, where rank 0 did not; several if their order is unknown."""
        with self._lock:
            ended = dict(self._ended)
        if not ended or min(ended.values()) >= ended.get(0, float("inf")):
            return []
        first = min(ended.values())
        lead_seconds = ended[0] - first if 0 in ended else 0.0
        return [
            RankEnd(self._ranks[at].name, first, lead_seconds) for at, when in sorted(ended.items()) if when == first
        ]

    def _wait(self, descriptors: dict[int, int]) -> None:
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        while descriptors:
            gone = [descriptor for descriptor, _ in poller.poll()]
            now = time.time()
            for descriptor in gone:
                poller.unregister(descriptor)
                with self._lock:
                    self._ended[descriptors.pop(descriptor)] = now
                os.close(descriptor)


_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})


def silent_end(out_of_memory: bool, step: int, time: float, journal_deleted: bool = False) -> Closing:
    """Return the closing of a process that wrote none, or whose journal was deleted."""
    if out_of_memory:
        return Closing("out_of_memory", "killed by the system: out of memory", step, time)
    if journal_deleted:
        return Closing("unknown", f"the journal was deleted after step {step}; later steps are lost", step, time)
    return Closing("killed", "process ended without notice: killed by a signal, or os._exit()", step, time)


def rank_died(closing: Closing, last_step: int, ended: Sequence[RankEnd], *, restarts: bool) -> Finding | None:
    """Return a finding about another rank that ended first, where the training did not end well.

    `restarts`: a launcher restarts the job, so that it is no warning.
    """
    if not ended or closing.outcome in ("finished", "stopped"):
        return None
    when = datetime.fromtimestamp(ended[0].time, timezone.utc).strftime("%H:%M:%S UTC")
    facts = RankDiedFacts(tuple(rank.name for rank in ended), len(ended), when, ended[0].before)
    severity = Severity.INFO if restarts else Severity.WARNING
    return Finding.at(facts, last_step, severity, remedies=RankDied.remedies, time=ended[0].time)


def waits_for_process(closing: Closing, own_run: bool) -> bool:
    """Whether the status is certain only after the process: MLflow's own exit may still set one."""
    return not own_run and closing.run_was_active


def status_to_set(closing: Closing, said_goodbye: bool, own_run: bool, status: str, others_live: bool) -> str | None:
    """Return the right status; None where the run has it, or it is not ours to set."""
    true = RUN_STATUS.get(closing.outcome, "FAILED")
    if others_live or status == true:
        return None
    if own_run:
        return true
    if not closing.run_was_active:
        return None  # already ended by its owner
    if status in _ENDED and (closing.outcome == "finished" or not said_goodbye):
        return None  # its owner knew more than we do
    return true
