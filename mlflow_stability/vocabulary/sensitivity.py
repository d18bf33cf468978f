"""The operating points there are: how much evidence a finding needs, as a multiple of the usual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

SENSITIVITIES = ("low", "normal", "high")
FACTORS: Mapping[str, float] = dict(zip(SENSITIVITIES, (1.5, 1.0, 0.7), strict=True))
"""Fitted on drawn curves, so that of healthy runs below 1 %, about 1 % and 3 to 5 % are flagged."""
MOST = 64.0
"""The highest score: of what exceeds its threshold so many times or more, and of what is no matter of degree."""
SCORE = "score"
"""The name that a finding's score has among the numbers behind it."""


def score_in(evidence: Mapping[str, float]) -> float:
    """By how many times a finding exceeds what it needs at normal sensitivity."""
    return evidence.get(SCORE, MOST)


class Scored(Protocol):
    """An event or an episode."""

    @property
    def score(self) -> float:
        """How sure it is."""
        ...


def with_highest_score(evidence: Mapping[str, float], parts: Iterable[Scored]) -> dict[str, float]:
    """The numbers behind what is made of several parts: as sure as the surest of them."""
    highest = max(each.score for each in parts)
    rest = {name: value for name, value in evidence.items() if name != SCORE}
    return rest if highest >= MOST else {**rest, SCORE: highest}
