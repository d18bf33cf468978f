"""Remove what deliveries leave behind: journals that are kept, checkpoints and batches of finished trainings.

Guarantees: nothing undelivered is removed, nor anything of a living training or courier; where a process cannot be
asked, age decides.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.courier.processes import holder_lives, process_of, was_delivered
from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.layout import (
    KEPT_FOLDERS,
    RELEASED,
    is_session,
    journal_roots_below,
    recording_folders,
    remove_empty_root,
    session_folders,
)
from mlflow_stability.recovery.checkpoints.stored_checkpoints import owner_lives, read_owner

YOUNGEST = 3600.0
"""Seconds; newer folders are never removed for their size, as a training that cannot be asked may still run."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A folder that no delivery needs any more."""

    folder: Path
    size: int
    changed: float  # last write of its training; those of couriers do not count


def leftovers(directory: Path) -> list[Leftover]:
    """Return all of them below a folder, oldest first."""
    measured = [_measure(folder) for root in journal_roots_below(directory) for folder in _finished_folders(root)]
    return sorted(measured, key=lambda leftover: leftover.changed)


def clean_up(directory: Path, older_than: float | None = None, largest: int | None = None) -> list[Leftover]:
    """Remove leftovers older than `older_than` seconds, then the oldest until at most `largest` bytes are left."""
    left, removed = leftovers(directory), []
    now = time.time()
    if older_than is not None:
        removed = [leftover for leftover in left if now - leftover.changed > older_than]
    if largest is not None:
        total = size_of(directory) - sum(leftover.size for leftover in removed)
        for leftover in left:
            if total > largest and leftover not in removed and now - leftover.changed > YOUNGEST:
                removed.append(leftover)
                total -= leftover.size
    for leftover in removed:
        shutil.rmtree(leftover.folder, ignore_errors=True)
        root = leftover.folder.parent
        if root.name in KEPT_FOLDERS:
            with suppress(OSError):  # not empty, or removed with another leftover
                root.rmdir()
            root = root.parent
        remove_empty_root(root)
    return removed


def size_of(directory: Path) -> int:
    """Return the size of all journals below a folder."""
    return sum(_measure(root).size for root in journal_roots_below(directory))


def _finished_folders(root: Path) -> Iterator[Path]:
    sessions = [session for session in session_folders(root) if is_session(session)]
    awaited = [session for session in sessions if not _is_over(session)]
    needed = {recording.name.partition("-")[2] for session in awaited for recording in recording_folders(session)}
    yield from (session for session in sessions if session not in awaited)
    for kind in sorted(KEPT_FOLDERS):
        for folder in sorted((root / kind).glob("*/")):
            if folder.name not in needed and not owner_lives(read_owner(folder)):
                yield folder


def _is_over(session: Path) -> bool:
    """Whether a session is delivered, and no process is known to work on it."""
    if holder_lives(session) or not was_delivered(session):
        return False
    return (session / RELEASED).exists() or not process_of(session).alive()


def _measure(folder: Path) -> Leftover:
    size, changed, is_of_session = 0, 0.0, is_session(folder)
    for file in folder.rglob("*"):
        try:
            stat = file.lstat()
        except FileNotFoundError:  # just delivered and removed by its courier
            continue
        if not file.is_dir():
            size += stat.st_size
            if file.name == JOURNAL or not is_of_session:
                changed = max(changed, stat.st_mtime)
    return Leftover(folder, size, changed or folder.stat().st_mtime)
