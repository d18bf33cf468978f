"""Make the cards of many runs: from the cache, in processes of our own, or on a cluster.

Progress is reported after each run, Ctrl-C gives what is done, and memory is that of the cards, not of the runs.
Processes are started only where they save more time than that takes. A card is found in the cache only for the same
state of the run, the same detectors, and the same rules: the version and a hash of the package's own files. Only the
owner can read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import mlflow_stability
from mlflow_stability.analysis.diagnose import cards_at
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import default_detectors, describe, read_detectors
from mlflow_stability.vocabulary.result import AskedCurves, RunCard, card_from_json, card_to_json
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


STARTING = 4.0  # seconds that it takes to start processes: they have to save more than that
KNOWN_AFTER = 3  # runs after which their duration is known; the first does not count, because it loads the readers
PROCESSES = 2  # each takes 200 MB, and with two of them reading a thousand runs takes as long as fetching them
Progress = Callable[[int, int, int], None]
"""Called with how many are done, how many there are, and how many could not be read."""


@dataclass(frozen=True, slots=True)
class MadeCards:
    cards: tuple[RunCard, ...]
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class HowToRead:
    """Where runs live, who judges them, and where the work is done."""

    tracking_uri: str | None = None
    detectors: Sequence[Detector] | None = None
    dask: str | None = None
    remember: bool = True
    curves: AskedCurves | None = None  # which curves to judge; cards of others than the usual ones are not remembered


def make_cards(
    sources: Sequence[str], heads: Mapping[str, RunHead], how: HowToRead, progress: Progress | None = None
) -> MadeCards:
    """Return the cards of these sources; a path may give several."""
    judged_by = _text_of(how.detectors)
    sendable = how.detectors is None or judged_by is not None
    usual = describe(default_detectors()) if how.detectors is None else judged_by
    cache = CardCache(usual) if how.remember and sendable and not how.curves else None
    made: dict[int, list[RunCard]] = {}
    failed = 0
    if cache is not None:
        cache.tidy()
    try:
        for place, source in enumerate(sources):
            head = heads.get(source)
            cached = cache.find(head) if cache is not None and head is not None else None
            if cached is not None:
                made[place] = [cached]
                if progress is not None:
                    progress(len(made), len(sources), failed)
        left = [place for place in range(len(sources)) if place not in made]
        unread = [sources[place] for place in left]
        with closing(_read(unread, how, judged_by, sendable=sendable)) as read:  # ends processes, too, on Ctrl-C
            for number, cards in read:
                place = left[number]
                made[place] = cards
                failed += any(not card.readable for card in cards)
                head = heads.get(sources[place])
                if cache is not None and head is not None and len(cards) == 1:
                    cache.keep(head, cards[0])
                if progress is not None:
                    progress(len(made), len(sources), failed)
    except KeyboardInterrupt:
        return MadeCards(_flat(made), interrupted=True)
    return MadeCards(_flat(made))


def _read(
    sources: Sequence[str], how: HowToRead, judged_by: str | None, *, sendable: bool
) -> Generator[tuple[int, list[RunCard]], None, None]:
    if how.dask is not None:
        if not sendable:
            raise SettingsError("Custom detectors cannot be sent to a cluster: give dask= or detectors=, not both.")
        from mlflow_stability.analysis.card_workers import cards_from_dask

        yield from cards_from_dask(sources, how.dask, how.tracking_uri, judged_by, how.curves)
        return
    processes = min(PROCESSES, os.cpu_count() or 1)
    began = 0.0
    for number, source in enumerate(sources):
        if number == 1:
            began = time.monotonic()
        if number >= KNOWN_AFTER and processes > 1 and sendable:
            left = (time.monotonic() - began) / (number - 1) * (len(sources) - number)
            if left * (1 - 1 / processes) > STARTING:
                from mlflow_stability.analysis.card_workers import cards_from_processes

                rest = cards_from_processes(sources[number:], processes, how.tracking_uri, judged_by, how.curves)
                with closing(rest):
                    for place, cards in rest:
                        yield number + place, cards
                return
        yield number, list(cards_at(source, how.tracking_uri, how.detectors, how.curves))


def _text_of(detectors: Sequence[Detector] | None) -> str | None:
    """Return the detectors as text; None for the default ones, and for those that cannot be built from a text."""
    if detectors is None:
        return None
    try:
        text = describe(detectors)
        return text if read_detectors(text) == tuple(detectors) else None
    except (SettingsError, TypeError):
        return None


def run_meant(source: str) -> str:
    """Return the same text for whatever names the same run: the real path of a path."""
    return os.path.realpath(source) if os.path.lexists(source) else source.lower()


def _flat(made: Mapping[int, list[RunCard]]) -> tuple[RunCard, ...]:
    """Return cards in the order asked for; a run that was asked for by its path and by its folder counts once."""
    different: dict[str, RunCard] = {}
    for place in sorted(made):
        for card in made[place]:
            different.setdefault(run_meant(card.source), card)
    return tuple(different.values())
