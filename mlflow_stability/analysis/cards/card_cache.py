"""Remembers the cards of finished runs on this machine.

In: what a tracking store says of a run, and the settings of the detectors. Out: the card that was made of just that
state, if it was. Guarantees: a run that changed, other settings, other rules of ours are a miss; so is an entry that is
damaged, and a folder that cannot be written to; only the owner can read it.

Tells one state of our rules from another, also where both call themselves by the same version.

In: our own files. Out: a hash of all that a card of a run depends on. Guarantees: it is found once, and in a zip file,
too; where the files cannot be read it is empty, and the version alone tells.
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

ROOMS = ("vocabulary", "detectors", "diagnosis", "tracking", "importers", "analysis")
"""What reads a run and what judges it."""


def rules_here() -> str:
    """The rules that cards are made by in this process: the version and the fingerprint."""
    return f"{mlflow_stability.__version__}\n{fingerprint_of_rules()}"


@cache
def fingerprint_of_rules() -> str:
    """The hash of the rules as they are installed; empty where they cannot be read."""
    return fingerprint_of(resources.files("mlflow_stability"))


def fingerprint_of(package: Traversable) -> str:
    """The hash of the rules in this folder."""
    found = hashlib.sha256()
    files = 0
    try:
        for room in ROOMS:
            for name, file in _sources(package.joinpath(room), room):
                content = file.read_bytes()
                found.update(f"{name} {len(content)}\n".encode())
                found.update(content)
                files += 1
    except OSError:
        return ""
    return found.hexdigest() if files else ""


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """The Python files of a folder and of those in it, each with its path in the package."""
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from _sources(each, f"{name}/{each.name}")
        elif each.name.endswith(".py"):
            yield f"{name}/{each.name}", each


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
            card = card_from_json(file.read_text(encoding="utf-8"))
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
            _write(self._file(self._folder, head), card_to_json(card))
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
        _logger.warning("Summaries of runs are not cached: %s. Set XDG_CACHE_HOME to choose another folder.", why)


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
