"""So many bad values in a row at one place are a finding, and all places together have one at a time.

Trouble that many layers share is one trouble: it begins where it was found first. It is over when no place has it and
that place has been well for some values in a row, so that trouble which comes and goes is one as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OVER_AFTER = 10
"""After how many good values in a row at the place where it was found the trouble is over."""


@dataclass(slots=True)
class PlaceStreaks:
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
