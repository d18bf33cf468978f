"""Make the cards of many runs: from the cache, in processes of our own, or on a cluster.

Progress is reported after each run, Ctrl-C gives what is done, and memory is that of the cards, not of the runs.
Processes are started only where they save more time than that takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from mlflow_stability.analysis.card_cache import CardCache
from mlflow_stability.analysis.diagnose import cards_at
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import default_detectors, describe, read_detectors
from mlflow_stability.vocabulary.result import AskedCurves, RunCard
from mlflow_stability.vocabulary.run import RunHead

STARTING = 4.0  # seconds that it takes to start processes: they have to save more than that
KNOWN_AFTER = 3
"""Runs after which their duration is known; the first does not count, because it loads the readers."""
PROCESSES = 2
"""Each takes 200 MB, and with two of them reading a thousand runs takes as long as fetching them."""
Progress = Callable[[int, int, int], None]
"""Called with how many are done, how many there are, and how many could not be read."""


@dataclass(frozen=True, slots=True)
class MadeCards:
    """Cards in the order asked for."""

    cards: tuple[RunCard, ...]
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class HowToRead:
    """Where runs live, who judges them, and where the work is done."""

    tracking_uri: str | None = None
    detectors: Sequence[Detector] | None = None
    dask: str | None = None
    remember: bool = True
    curves: AskedCurves | None = None
    """Which curves to judge; cards of others than the usual ones are not remembered."""


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
                _report(progress, len(made), len(sources), failed)
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
                _report(progress, len(made), len(sources), failed)
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


def _report(progress: Progress | None, done: int, total: int, failed: int) -> None:
    if progress is not None:
        progress(done, total, failed)
