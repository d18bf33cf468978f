"""Finds sessions that nobody delivers any more: their training and their courier were killed together.

In: a journal root and where we deliver to. Out: the oldest session that is left alone and goes to the same store.
"""

from __future__ import annotations

from pathlib import Path

from mlflow_stability.courier.claim import holder_lives
from mlflow_stability.courier.json_page import read_page
from mlflow_stability.courier.recording import opening_if_readable
from mlflow_stability.courier.training_process import process_of
from mlflow_stability.journal.layout import STATUS, recording_folders, session_folders
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.tracking.address import default_uri, same_store


def next_orphan(root: Path, own: Path, tracking_uri: str | None, not_again: set[Path]) -> Path | None:
    """A session to deliver beside our own; None if there is none."""
    ours = tracking_uri or default_uri("")
    for folder in session_folders(root):
        if folder != own and folder not in not_again and _is_orphan(folder, ours):
            return folder
    return None


def _is_orphan(folder: Path, tracking_uri: str) -> bool:
    openings = [opening_if_readable(each) for each in recording_folders(folder)]
    known = [each for each in openings if each is not None]
    if not known or len(known) < len(openings) or holder_lives(folder):
        return False
    process = process_of(folder, known[0])
    if process.alive() or (not process.has_ended() and _was_delivered(folder)):
        return False
    theirs = [each.tracking_uri or default_uri(each.directory) for each in known]
    return all(same_store(uri, tracking_uri, each.directory) for uri, each in zip(theirs, known, strict=True))


def _was_delivered(folder: Path) -> bool:
    """Whether all that was written here has arrived, and the journal is kept only for what may come."""
    page = folder / STATUS
    if read_page(page).get("state") != "done":
        return False
    return all((each / JOURNAL).stat().st_mtime <= page.stat().st_mtime for each in recording_folders(folder))
