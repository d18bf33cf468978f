"""Makes the cards of many runs: from memory what is known already, the rest in processes of our own or on a cluster.

In: sources, and what the store says of them. Out: the cards in the order asked for. Guarantees: progress is told after
each; Ctrl-C gives what is done so far; memory is that of the cards, not of the runs; processes are started only where
they save more time than that takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from mlflow_stability.analysis.cards.card_cache import CardCache
from mlflow_stability.analysis.cards.one_card import cards_at
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import default_detectors, describe, read_detectors
from mlflow_stability.vocabulary.result import AskedCurves, RunCard
from mlflow_stability.vocabulary.run import RunHead

STARTING = 4.0
"""Seconds that it takes to start processes: they have to save more than that."""
KNOWN_AFTER = 3
"""Runs after which it is known how long one takes; the first does not count, for it loads what reads it."""
PROCESSES = 2
"""At most: each takes 200 MB, and with two of them reading a thousand runs takes as long as fetching them."""
Progress = Callable[[int, int, int], None]
"""Called with how many are done, how many there are, and how many could not be read."""


@dataclass(frozen=True, slots=True)
class MadeCards:
    """What came of it."""

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
    """The cards of these; a path may give several."""
    judged_by = _text_of(how.detectors)
    sendable = how.detectors is None or judged_by is not None
    usual = describe(default_detectors()) if how.detectors is None else judged_by
    cache = CardCache(usual) if how.remember and sendable and not how.curves else None
    found: dict[int, list[RunCard]] = {}
    failed = 0
    if cache is not None:
        cache.tidy()
    try:
        for place, source in enumerate(sources):
            head = heads.get(source)
            known = cache.find(head) if cache is not None and head is not None else None
            if known is not None:
                found[place] = [known]
                _tell(progress, len(found), len(sources), failed)
        left = [place for place in range(len(sources)) if place not in found]
        asked = [sources[place] for place in left]
        with closing(_made(asked, how, judged_by, sendable=sendable)) as made:  # ends processes, too, on Ctrl-C
            for number, cards in made:
                place = left[number]
                found[place] = cards
                failed += any(not card.readable for card in cards)
                head = heads.get(sources[place])
                if cache is not None and head is not None and len(cards) == 1:
                    cache.keep(head, cards[0])
                _tell(progress, len(found), len(sources), failed)
    except KeyboardInterrupt:
        return MadeCards(_flat(found), interrupted=True)
    return MadeCards(_flat(found))


def _made(
    sources: Sequence[str], how: HowToRead, judged_by: str | None, *, sendable: bool
) -> Generator[tuple[int, list[RunCard]], None, None]:
    if how.dask is not None:
        if not sendable:
            raise SettingsError("Custom detectors cannot be sent to a cluster: give dask= or detectors=, not both.")
        from mlflow_stability.analysis.cards.dask_cluster import cards_from_dask

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
                from mlflow_stability.analysis.cards.worker_pool import cards_from_processes

                rest = cards_from_processes(sources[number:], processes, how.tracking_uri, judged_by, how.curves)
                with closing(rest):
                    for place, cards in rest:
                        yield number + place, cards
                return
        yield number, list(cards_at(source, how.tracking_uri, how.detectors, how.curves))


def _text_of(detectors: Sequence[Detector] | None) -> str | None:
    """The detectors as text; None for the usual ones, and for such as cannot be built from a text."""
    if detectors is None:
        return None
    try:
        text = describe(detectors)
        return text if read_detectors(text) == tuple(detectors) else None
    except (SettingsError, TypeError):
        return None


def run_meant(source: str) -> str:
    """The same text for whatever names the same run: a path is told from others by where it leads."""
    return os.path.realpath(source) if os.path.lexists(source) else source.lower()


def _flat(found: Mapping[int, list[RunCard]]) -> tuple[RunCard, ...]:
    """In the order asked for; a run that was asked for by its path and by its folder counts once."""
    different: dict[str, RunCard] = {}
    for place in sorted(found):
        for card in found[place]:
            different.setdefault(run_meant(card.source), card)
    return tuple(different.values())


def _tell(progress: Progress | None, done: int, total: int, failed: int) -> None:
    if progress is not None:
        progress(done, total, failed)
