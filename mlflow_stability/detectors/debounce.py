"""One finding for one trouble: says whether a detector may speak.

A detector that has spoken is silent until the trouble is over: nothing was wrong for so many values in a row. In
between it speaks again only if the trouble has become worse in kind, from a warning to a critical one.

So many bad values in a row are one finding; it is over with the first good one.

So many bad values in a row at one place are a finding, and all places together have one at a time.

Trouble that many layers share is one trouble: it begins where it was found first. It is over when no place has it and
that place has been well for some values in a row, so that trouble which comes and goes is one as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.vocabulary.result.event import Severity


@dataclass(slots=True)
class EpisodeFilter:
    """Whether there is trouble at the moment, and what was said of it."""

    said: int = 0
    """The severity of what was said; 0 while all is well."""
    calm: int = 0
    """How many values in a row nothing has been wrong."""

    def speaks(self, severity: Severity) -> bool:
        """Something is wrong: whether it has not been said yet."""
        self.calm = 0
        if severity <= self.said:
            return False
        self.said = severity
        return True

    def quiet(self, over_after: int) -> None:
        """Nothing is wrong at this value; after `over_after` of them in a row the trouble is over."""
        self.calm += 1
        if self.calm >= over_after:
            self.said = 0


@dataclass(slots=True)
class Streak:
    """How many values in a row have been bad, and whether that was said."""

    length: int = 0
    said: bool = False

    def reaches(self, needed: int, *, bad: bool) -> bool:
        """Count one more value; True once, when the streak has reached its length."""
        if not bad:
            self.length, self.said = 0, False
            return False
        self.length += 1
        if self.said or self.length < needed:
            return False
        self.said = True
        return True


OVER_AFTER = 10
"""After how many good values in a row at the place where it was found the trouble is over."""


@dataclass(slots=True)
class StreakByPlace:
    """How many values in a row have been bad, by place, and whether that was said."""

    lengths: dict[str, int] = field(default_factory=dict)
    """Places without any are left out."""
    said: str | None = None
    """The place of which it was said."""
    calm: int = 0
    """How many values in a row have been good there since."""

    def reaches(self, place: str, needed: int, *, bad: bool) -> bool:
        """Count one more value of a place; True once, when the first place has reached the length."""
        if not bad:
            self.lengths.pop(place, 0)
            if place == self.said:
                self.calm += 1
                if self.calm >= OVER_AFTER and all(each < needed for each in self.lengths.values()):
                    self.said = None
            return False
        self.lengths[place] = length = self.lengths.get(place, 0) + 1
        if place == self.said:
            self.calm = 0
        if self.said is not None or length < needed:
            return False
        self.said, self.calm = place, 0
        return True
