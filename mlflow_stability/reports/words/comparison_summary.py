"""The sentence that leads a comparison, and its notes.

In: a comparison. Out: sentences. Guarantees: each note once, with the runs that it is about.
"""

from __future__ import annotations

from mlflow_stability.vocabulary.result import JUDGED_LIVE, Comparison
from mlflow_stability.vocabulary.text import counted


def lead(comparison: Comparison) -> str:
    """``Unstable were 15 of 15 with lr above 0.1, and 0 of 25 with lr up to 0.1. Also associated: warmup.``"""
    named = comparison.cohort.associations if comparison.cohort else ()
    if not named:
        return ""
    others = ", ".join(" and ".join(each.params) for each in named[1:])
    return f"{named[0].statement} Also associated: {others}." if others else named[0].statement


FEW_NAMES, MOST = 3, 8


def notes(comparison: Comparison) -> list[str]:
    """Notes on these runs and on comparing them."""
    about: dict[str, list[str]] = {}
    for card in comparison.cards:
        for note in card.notes:
            if note != JUDGED_LIVE:
                about.setdefault(note, []).append(card.name or card.source)
    told = [
        f"{', '.join(names) if len(names) <= FEW_NAMES else counted(len(names), 'run')}: {note}"
        for note, names in about.items()
    ]
    more = [f"{counted(len(told) - MOST, 'more note')} on single runs."] if len(told) > MOST else []
    return [*comparison.notes, *told[:MOST], *more]
