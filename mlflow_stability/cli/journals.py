"""Looks through a journal directory: which sessions are there, who writes them, who delivers them.

In: a journal root, or one session in it. Out: what is known of each session, oldest first. Nothing is changed and
nobody is asked but the files and this machine's list of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.courier.claim import holder_lives
from mlflow_stability.courier.json_page import read_page
from mlflow_stability.courier.recording import opening_if_readable
from mlflow_stability.courier.training_process import process_of
from mlflow_stability.errors import JournalError
from mlflow_stability.journal.layout import RELEASED, STATUS, recording_folders, session_folders
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.vocabulary.milestone import Opening


@dataclass(frozen=True, slots=True)
class SessionState:
    """One training process, as its journal shows it."""

    folder: Path
    openings: tuple[Opening, ...]
    """How its recordings began."""
    size: int
    """Bytes of its journals."""
    training_lives: bool
    courier_lives: bool
    trouble: str
    """What the courier said last, if the store is away."""

    @property
    def left_behind(self) -> bool:
        """Nobody delivers it any more."""
        return not self.courier_lives and not self.training_lives


def sessions_in(journal: Path) -> list[SessionState]:
    """The sessions of a journal root, or the one session that was named."""
    if is_session(journal):
        return [_state(journal)]
    sessions = [_state(folder) for folder in session_folders(journal) if is_session(folder)]
    if not sessions and journal.is_dir() and any(journal.iterdir()):
        raise JournalError(
            f"{journal} holds no journal of mlflow-stability. Journals lie in .mlflow-stability/ where the training "
            "was started, or where MLFLOW_STABILITY_JOURNAL_DIR or autolog(journal_dir=...) says."
        )
    return sessions


def is_session(folder: Path) -> bool:
    """Whether this is the folder of one training process."""
    return bool(recording_folders(folder)) or any((folder / name).exists() for name in (STATUS, RELEASED))


def _state(folder: Path) -> SessionState:
    recordings = recording_folders(folder)
    openings = tuple(each for each in map(opening_if_readable, recordings) if each is not None)
    return SessionState(
        folder,
        openings,
        sum(map(_size, recordings)),
        not (folder / RELEASED).exists() and process_of(folder, next(iter(openings), None)).alive(),
        holder_lives(folder),
        str(read_page(folder / STATUS).get("error") or ""),
    )


def _size(recording: Path) -> int:
    try:
        return (recording / JOURNAL).stat().st_size
    except FileNotFoundError:  # its courier has just delivered it
        return 0
