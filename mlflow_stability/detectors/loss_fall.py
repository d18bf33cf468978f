"""How far a loss has fallen since it began, and below which level its changes no longer matter.

In: the losses, or gradient norms, of one training, one after the other. Out: the level at which they began, the share
of it that is left, whether it has been learnt, and whether a rise to a value is trouble at all. Detectors and the rules
of whole curves use the same definitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

FIRST_VALUES = 20
"""So many first values say where a curve began."""
RECENT_VALUES = 10
"""And so many last ones where it is."""
EARLY_VALUES = 3
"""In the first steps, the median of so many last ones is compared with the very first."""
LEARNT = 0.01
"""Below this share of where it began a loss has been learnt: its gradient is tiny by nature, and a jump is none."""
NOISY_BELOW, NOISY_RISE = 0.05, 0.2
"""Where a loss below the first share of where it began leaps about, only a rise to the second is trouble: a single
example that is still hard makes it leap a hundredfold, and nothing has been lost. A level of exactly zero
leaps by any rise."""
NOISY = 0.5
"""A loss leaps about whose noise is this share of it, or more."""


def start_level(first: Sequence[float]) -> float:
    """Where a curve with these first values began; 0 where there is none.

    The very first ones count as well as the median: of a log with a point every ten steps they may be the only high
    ones. A single one counts for a tenth of itself, for a first step from random weights may cost any amount.
    """
    return max(median(first), median(first[:3]), first[0] / 10) if first else 0.0


def negligible_level(first: Sequence[float], level: float | None = None, noise: float = 0.0) -> float:
    """Up to which value a rise is no trouble, of a loss with these first values; of negative ones nobody can say so.

    A mean over an epoch has fallen far by the second one, so that where it leaps about the highest of three counts.
    """
    little = LEARNT * start_level(first)
    if level is None or not first:
        return little
    highest = max(first[:3])
    leaps = level < NOISY_BELOW * highest and (noise >= NOISY or level == 0.0)
    return max(little, NOISY_RISE * highest) if leaps else little


@dataclass(slots=True)
class FirstValues:
    """The first values of one curve."""

    first: list[float] = field(default_factory=list)
    count: int = FIRST_VALUES
    """So many of them are looked at."""

    def take(self, value: float) -> None:
        """Take a finite value in."""
        if len(self.first) < self.count:
            self.first.append(value)

    def matters(self, value: float, level: float | None = None, noise: float = 0.0) -> bool:
        """Whether a rise from a level to a value is trouble, given its noise as a share of the level."""
        return (level is not None and level < 0) or value >= negligible_level(self.first, level, noise)


@dataclass(slots=True)
class LossFall:
    """The first and the last losses of one training."""

    begun: FirstValues = field(default_factory=FirstValues)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_VALUES))

    def take(self, value: float) -> None:
        """Take a finite loss in."""
        begun = self.begun
        if len(begun.first) < begun.count:  # as `FirstValues.take`: many detectors follow the loss at every step
            begun.first.append(value)
        self.recent.append(value)

    def share(self) -> float | None:
        """What is left of the median of the first losses; None where that cannot be said."""
        if len(self.begun.first) < self.begun.count:
            return None
        # Of the last values, not of the baseline: that does not follow a loss which jumped when the gradient went.
        start, now = median(self.begun.first), median(self.recent)
        return now / start if start > 0 and now >= 0 else None

    def size_at_start(self) -> float:
        """Return the size of the first losses, at most 1 and 1 where there are none.

        A loss that is multiplied by a small number has gradients that are as small, and trains as well.
        """
        first = self.begun.first
        return min(1.0, abs(median(first))) if first else 1.0

    def has_fallen_to(self, share: float) -> bool:
        """Return whether at most this share of the start is left; in the first steps, of the very first value."""
        known = self.share()
        if known is not None:
            return known <= share
        first = self.begun.first
        return len(first) > EARLY_VALUES and 0 <= median([*self.recent][-EARLY_VALUES:]) <= share * first[0]

    def learnt(self) -> bool:
        """Whether next to nothing is left of it."""
        if not self.recent:
            return False
        now = median(self.recent)
        return now >= 0 and not self.begun.matters(now)


@dataclass(slots=True)
class LossFalls:
    """The same of all trainings of one recording."""

    by_place: dict[str, LossFall] = field(default_factory=dict)

    def take(self, place: str, value: float) -> None:
        """Take a finite loss in."""
        fall = self.by_place.get(place)
        if fall is None:
            fall = self.by_place[place] = LossFall()
        begun = fall.begun
        if len(begun.first) < begun.count:
            begun.first.append(value)
        fall.recent.append(value)

    def share(self) -> float | None:
        """What is left of the one that has fallen least; None where that cannot be said of all of them."""
        shares = [each.share() for each in self.by_place.values()]
        known = [each for each in shares if each is not None]
        return max(known) if known and len(known) == len(shares) else None

    def learnt(self) -> bool:
        """Whether next to nothing is left of any of them."""
        return bool(self.by_place) and all(each.learnt() for each in self.by_place.values())
