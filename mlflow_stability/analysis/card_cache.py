"""Remembers the cards of finished runs on this machine.

In: what a tracking store says of a run, and the settings of the detectors. Out: the card that was made of just that
state, if it was. Promised: a run that changed, other settings, other rules of ours are a miss; so is an entry that is
damaged, and a folder that cannot be written to; only the owner can read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path

from mlflow_stability.analysis.rules_fingerprint import rules_here
from mlflow_stability.vocabulary.card_text import card_of, text_of
from mlflow_stability.vocabulary.run_card import RunCard
from mlflow_stability.vocabulary.run_head import RunHead
from mlflow_stability.vocabulary.run_history import DAMAGED

_logger = logging.getLogger(__name__)
_BEING_WRITTEN = ".new"
KEPT_DAYS = 90
"""A card that was not asked for in so many days is removed."""


def cache_folder() -> Path | None:
    """Where cards are kept: in ``$XDG_CACHE_HOME``, or ``~/.cache``; None for a user of a container without a home."""
    said = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(said) if said and Path(said).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return root / "mlflow-stability" / "cards"


class CardCache:
    """The cards of runs as they were judged by one set of detectors."""

    def __init__(self, detectors: str | None, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder()
        self._judged_by = f"{rules_here()}\n{detectors or ''}"
        self._writable = True

    def find(self, head: RunHead) -> RunCard | None:
        """The card of this run in this state; None where there is none."""
        if self._folder is None:
            return None
        file = self._file(self._folder, head)
        try:
            card = card_of(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # it is in use
        return card

    def keep(self, head: RunHead, card: RunCard) -> None:
        """Remember a card of a run that is over; what could not be read, in part or whole, is read again."""
        whole = card.readable and not any(note.startswith(DAMAGED) for note in card.notes)
        if not (head.finished and whole and self._writable):
            return
        if self._folder is None:
            self._give_up("this user has no home folder")
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._file(self._folder, head), text_of(card))
        except OSError as error:
            self._give_up(f"{self._folder}: {error.strerror or error}")

    def tidy(self) -> None:
        """Remove what was not asked for in a long time, and what a process left that was killed while it wrote."""
        if self._folder is None:
            return
        oldest = time.time() - KEPT_DAYS * 86_400
        with contextlib.suppress(OSError):
            for file in (*self._folder.glob("*.json"), *self._folder.glob(f"*{_BEING_WRITTEN}")):
                if file.stat().st_mtime < oldest:
                    file.unlink()

    def _file(self, folder: Path, head: RunHead) -> Path:
        key = hashlib.sha256(f"{head.run_id}\n{head.state}\n{self._judged_by}".encode()).hexdigest()
        return folder / f"{key}.json"

    def _give_up(self, why: str) -> None:
        self._writable = False
        _logger.warning("Cards of runs are not remembered: %s. XDG_CACHE_HOME can name another folder.", why)


def _write(file: Path, text: str) -> None:
    """Whole or not at all, readable by its owner only."""
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=_BEING_WRITTEN)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as being_written:
            being_written.write(text)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
