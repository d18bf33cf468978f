"""Knows which losses are those of players: trainings that take turns, as the halves of a GAN do.

The loss of one rises as the other learns, so that its level says nothing about progress. Detectors, which see one loss
after the other, and rules, which see whole curves, use the same definition and the same factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

RISE = 10.0
"""So many times as high as before, at least, is a player's loss that has diverged."""


@dataclass(slots=True)
class AlternatingLosses:
    """Whose loss came last, and whether one came again after another's."""

    last: str | None = None
    seen: set[str] = field(default_factory=set)
    taken: bool = False
    """Whether trainings take turns; those that follow one upon the other do not."""

    def take(self, place: str) -> None:
        """See whose loss comes next."""
        if place != self.last:
            self.taken = self.taken or place in self.seen
            self.seen.add(place)
            self.last = place


def take_turns(spans: Iterable[tuple[int, int]]) -> bool:
    """The same of whole curves, each from its first to its last step."""
    return any(after[0] < before[1] for before, after in pairwise(sorted(spans)))
