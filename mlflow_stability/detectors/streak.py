"""So many bad values in a row are one finding; it is over with the first good one."""

from __future__ import annotations

from dataclasses import dataclass


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
