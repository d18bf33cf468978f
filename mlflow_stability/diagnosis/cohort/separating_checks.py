"""Names the mistakes in the set-up that separate runs with trouble from stable ones."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_stability.diagnosis.verdict import noun_of
from mlflow_stability.kinds.catalog import OF_SETUP, TYPES
from mlflow_stability.vocabulary.result import RunCard
from mlflow_stability.vocabulary.text import capitalised, counted

FEWEST = 2
"""Minimum number of runs of either sort."""
SHARE = 0.5
"""Minimum share of the runs with trouble that a mistake was found in."""
MAX_NAMED = 3
"""Number of mistakes that are named."""


def separating_checks(cards: Sequence[RunCard]) -> tuple[str, ...]:
    """A sentence for each mistake that runs with trouble have and stable ones do not, the most frequent first."""
    stable = [card for card in cards if card.state == "stable"]
    others = [card for card in cards if card.state in ("lost", "stuck", "unstable")]
    if min(len(stable), len(others)) < FEWEST:
        return ()
    in_stable = {kind for card in stable for kind in _mistakes(card)}
    kinds = [kind for kind in dict.fromkeys(each.kind for each in TYPES) if kind in OF_SETUP - in_stable]
    counts = {kind: sum(kind in _mistakes(card) for card in others) for kind in kinds}
    frequent = [kind for kind in kinds if counts[kind] >= max(FEWEST, SHARE * len(others))]
    named = sorted(frequent, key=lambda kind: -counts[kind])
    return tuple(
        f"{capitalised(noun_of(kind))} ({kind}): in {counts[kind]} of "
        f"{counted(len(others), 'run')} with trouble, in none of {len(stable)} stable ones."
        for kind in named[:MAX_NAMED]
    )


def _mistakes(card: RunCard) -> set[str]:
    """The kinds of mistakes in the set-up that were found in a run."""
    return {mark.kind for mark in card.troubles if mark.kind in OF_SETUP}
