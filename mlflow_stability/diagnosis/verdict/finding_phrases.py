"""Findings as a list within a sentence: "2 loss spikes, a plateau and NaN"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mlflow_stability.kinds.catalog import bare_noun_of, definite_noun_of, noun_of

__all__ = ["bare_noun_of", "definite_noun_of", "listed", "noun_of"]


def listed(kinds: Iterable[str]) -> str:
    """All of them: "2 loss spikes, a plateau and NaN"."""
    nouns = [noun_of(kind, count) for kind, count in Counter(kinds).items()]
    return nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} and {nouns[-1]}"
