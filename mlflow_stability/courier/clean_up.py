"""Removes what deliveries leave behind: journals that are kept, checkpoints and batches of trainings that are over.

In: a folder with journals, an age, a size. Out: what was removed. Guarantees: nothing goes that has not been delivered,
nor anything of a training or courier that lives; where a process cannot be asked, age decides.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.courier.process.claim import holder_lives, was_delivered
from mlflow_stability.courier.process.training_process import process_of
from mlflow_stability.journal.follower import opening_if_readable
from mlflow_stability.journal.layout import (
    OUTLIVE,
    RELEASED,
    is_session,
    journal_roots_below,
    recording_folders,
    remove_empty_root,
    session_folders,
)
from mlflow_stability.journal.process_identity import ProcessStatus, identity_from, life_of
from mlflow_stability.journal.writer import NAME as JOURNAL

YOUNGEST = 3600.0
"""Seconds; what changed later is never removed for its size: a training that cannot be asked may be going on."""
_OWNER = "owner.json"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A folder that nobody needs for a delivery any more."""

    folder: Path
    size: int
    """Bytes."""
    changed: float
    """When its training last wrote to it; what couriers write does not count, for every delivery does."""


def leftovers(directory: Path) -> list[Leftover]:
    """All of them below a folder, the one that changed longest ago first."""
    found = [_measured(folder) for root in journal_roots_below(directory) for folder in _over(root)]
    return sorted(found, key=lambda each: each.changed)


def clean_up(directory: Path, older_than: float | None = None, largest: int | None = None) -> list[Leftover]:
    """Remove what is older than so many seconds, and then the oldest until everything takes at most `largest` bytes."""
    left, removed = leftovers(directory), []
    now = time.time()
    if older_than is not None:
        removed = [each for each in left if now - each.changed > older_than]
    if largest is not None:
        total = size_of(directory) - sum(each.size for each in removed)
        for each in left:
            if total > largest and each not in removed and now - each.changed > YOUNGEST:
                removed.append(each)
                total -= each.size
    for each in removed:
        shutil.rmtree(each.folder, ignore_errors=True)
        root = each.folder.parent.parent if each.folder.parent.name in OUTLIVE else each.folder.parent
        _remove_if_empty([each.folder.parent, root])
    return removed


def size_of(directory: Path) -> int:
    """Bytes of everything in the journals below a folder."""
    return sum(_measured(root).size for root in journal_roots_below(directory))


def _over(root: Path) -> Iterator[Path]:
    sessions = [each for each in session_folders(root) if is_session(each)]
    awaited = [each for each in sessions if not _is_over(each)]
    needed = {recording.name.partition("-")[2] for session in awaited for recording in recording_folders(session)}
    yield from (each for each in sessions if each not in awaited)
    for kind in sorted(OUTLIVE):
        for folder in sorted((root / kind).glob("*/")):
            if folder.name not in needed and not _is_owned(folder):
                yield folder


def _is_over(session: Path) -> bool:
    """Delivered, and nobody is known to be at work on it."""
    if holder_lives(session) or not was_delivered(session):
        return False
    opening = next(filter(None, map(opening_if_readable, recording_folders(session))), None)
    return (session / RELEASED).exists() or not process_of(session, opening).alive()


def _is_owned(folder: Path) -> bool:
    """Whether the process that keeps its checkpoints here is certainly there."""
    try:
        said = json.loads((folder / _OWNER).read_bytes())
    except (OSError, ValueError):
        return False
    process = identity_from(said) if isinstance(said, dict) else None
    return process is not None and life_of(process) is ProcessStatus.LIVES


def _measured(folder: Path) -> Leftover:
    size, changed, is_of_session = 0, 0.0, is_session(folder)
    for file in folder.rglob("*"):
        try:
            known = file.lstat()
        except FileNotFoundError:  # a courier has just delivered it
            continue
        if not file.is_dir():
            size += known.st_size
            if file.name == JOURNAL or not is_of_session:
                changed = max(changed, known.st_mtime)
    return Leftover(folder, size, changed or folder.stat().st_mtime)


def _remove_if_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        if folder.name in OUTLIVE and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        elif folder.name not in OUTLIVE:
            remove_empty_root(folder)
