"""Calls no two runs of a comparison alike.

In: a comparison. Out: the same, with names that tell its runs apart. Guarantees: a name that only one run has stays as
it is; of runs that are called alike each gets as much of its id, or of its path, as tells it from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from mlflow_stability.vocabulary.result import Comparison, RunCard

FEWEST = 8
"""Characters of an id that are shown at least."""


def told_apart(comparison: Comparison) -> Comparison:
    """The comparison, for people: programs find a run by its source."""
    names = names_of((*comparison.cards, *comparison.unread))
    gate = comparison.gate
    return replace(
        comparison,
        runs=tuple(replace(each, card=_called(each.card, names)) for each in comparison.runs),
        unread=tuple(_called(card, names) for card in comparison.unread),
        gate=gate
        and replace(
            gate,
            name=names.get(gate.baseline, gate.name),
            verdicts=tuple(replace(each, name=names.get(each.source, each.name)) for each in gate.verdicts),
        ),
    )


def names_of(cards: Sequence[RunCard]) -> dict[str, str]:
    """What to call each run, by its source."""
    alike: dict[str, list[str]] = {}
    for card in cards:
        sources = alike.setdefault(card.name or card.source, [])
        if card.source not in sources:
            sources.append(card.source)
    return {
        source: name if len(sources) == 1 else _with(name, telling)
        for name, sources in alike.items()
        for source, telling in zip(sources, _telling(sources), strict=True)
    }


def _called(card: RunCard, names: Mapping[str, str]) -> RunCard:
    return replace(card, name=names[card.source])


def _with(name: str, telling: str) -> str:
    """``baseline (3f2a91cc)``; ``version_0/metrics.csv`` of a log, whose name is the end of its path."""
    return telling if PurePath(telling).name == name else f"{name} ({telling})"


def _telling(sources: Sequence[str]) -> list[str]:
    """The shortest ends of paths, or beginnings of ids, that are all different."""
    if any(PurePath(each).name != each for each in sources):
        parts = [PurePath(each).parts for each in sources]
        tails = ([str(PurePath(*each[-count:])) for each in parts] for count in range(1, max(map(len, parts))))
        return next((tail for tail in tails if len(set(tail)) == len(tail)), list(sources))
    heads = ([each[:count] for each in sources] for count in range(FEWEST, max(map(len, sources), default=0)))
    return next((head for head in heads if len(set(head)) == len(head)), list(sources))
