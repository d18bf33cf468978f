"""Cache the cards of finished runs on this machine.

A card is found again only for the same state of the run, the same detectors, and the same rules: the version and a hash
of the package's own files. Only the owner can read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path

import mlflow_stability
from mlflow_stability.vocabulary.result import RunCard, card_from_json, card_to_json
from mlflow_stability.vocabulary.run import DAMAGED, RunHead

if sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable
else:
    from importlib.abc import Traversable

ROOMS = ("vocabulary", "detectors", "curves", "kinds", "diagnosis", "tracking", "importers", "analysis")
"""What reads a run and what judges it."""
KEPT_DAYS = 90  # a card that was not used for this number of days is removed
_TEMPORARY = ".new"
_logger = logging.getLogger(__name__)


def rules_here() -> str:
    """Return the rules that cards are made by in this process: the version and the fingerprint."""
    return f"{mlflow_stability.__version__}\n{fingerprint_of_rules()}"


@cache
def fingerprint_of_rules() -> str:
    """Return the hash of the rules as they are installed, in a zip file too; empty where they cannot be read."""
    return fingerprint_of(resources.files("mlflow_stability"))


def fingerprint_of(package: Traversable) -> str:
    """Return the hash of the rules in this folder."""
    digest = hashlib.sha256()
    files = 0
    try:
        for room in ROOMS:
            for name, file in _sources(package.joinpath(room), room):
                content = file.read_bytes()
                digest.update(f"{name} {len(content)}\n".encode())
                digest.update(content)
                files += 1
    except OSError:
        return ""
    return digest.hexdigest() if files else ""


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """Yield the Python files of a folder and of those in it, each with its path in the package."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{name}/{entry.name}", entry


def cache_folder() -> Path | None:
    """Return where cards are kept, in ``$XDG_CACHE_HOME`` or ``~/.cache``; None for a user without a home folder."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(configured) if configured and Path(configured).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return root / "mlflow-stability" / "cards"


class CardCache:
    """Cards of runs as they were judged by one set of detectors."""

    def __init__(self, detectors: str | None, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder()
        self._judged_by = f"{rules_here()}\n{detectors or ''}"
        self._writable = True

    def find(self, head: RunHead) -> RunCard | None:
        """Return the card of this run in this state, if it was kept."""
        if self._folder is None:
            return None
        file = self._file(self._folder, head)
        try:
            card = card_from_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # it is in use
        return card

    def keep(self, head: RunHead, card: RunCard) -> None:
        """Keep the card of a finished run; what could not be read, in part or whole, is read again."""
        whole = card.readable and not any(note.startswith(DAMAGED) for note in card.notes)
        if not (head.finished and whole and self._writable):
            return
        if self._folder is None:
            self._give_up("this user has no home folder")
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._file(self._folder, head), card_to_json(card))
        except OSError as error:
            self._give_up(f"{self._folder}: {error.strerror or error}")

    def tidy(self) -> None:
        """Remove cards that were not used for a long time, and files of processes that were killed while writing."""
        if self._folder is None:
            return
        oldest = time.time() - KEPT_DAYS * 86_400
        with contextlib.suppress(OSError):
            for file in (*self._folder.glob("*.json"), *self._folder.glob(f"*{_TEMPORARY}")):
                if file.stat().st_mtime < oldest:
                    file.unlink()

    def _file(self, folder: Path, head: RunHead) -> Path:
        key = hashlib.sha256(f"{head.run_id}\n{head.state}\n{self._judged_by}".encode()).hexdigest()
        return folder / f"{key}.json"

    def _give_up(self, why: str) -> None:
        self._writable = False
        _logger.warning("Summaries of runs are not cached: %s. Set XDG_CACHE_HOME to choose another folder.", why)


def _write(file: Path, text: str) -> None:
    """Write the whole file or nothing, readable by its owner only."""
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=_TEMPORARY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as temporary:
            temporary.write(text)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
