"""How far a loss has fallen since its start, and below which level its changes no longer matter.

Detectors and the rules of whole curves share these definitions, for losses and gradient norms alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

FIRST_VALUES = 20  # number of first values that define the start of a curve
RECENT_VALUES = 10  # number of last values that define its present level
EARLY_VALUES = 3  # number of last values that are compared with the very first one during the first steps
LEARNT = 0.01  # share of its start below which a loss has been learnt: its gradient is tiny, jumps are harmless
NOISY_BELOW, NOISY_RISE = 0.05, 0.2
"""A very noisy loss below the first share of its start rises harmlessly up to the second: a single hard example raises
it a hundredfold. A loss of exactly zero counts as very noisy."""
NOISY = 0.5  # minimum noise of a very noisy loss, as a share of its level


def start_level(first: Sequence[float]) -> float:
    """Return the level at which a curve with these first values started; 0 without values.

    The first three count beside the median: in a log of every tenth step they may be the only high ones. A single value
    counts for a tenth, because a first step from random weights can have any loss.
    """
    return max(median(first), median(first[:3]), first[0] / 10) if first else 0.0


def negligible_level(first: Sequence[float], level: float | None = None, noise: float = 0.0) -> float:
    """Return the value up to which a loss with these first values rises harmlessly.

    The highest of the first three counts where the loss is very noisy: means over epochs have fallen far by the second.
    """
    learnt = LEARNT * start_level(first)
    if level is None or not first:
        return learnt
    highest = max(first[:3])
    is_noisy = level < NOISY_BELOW * highest and (noise >= NOISY or level == 0.0)
    return max(learnt, NOISY_RISE * highest) if is_noisy else learnt


@dataclass(slots=True)
class FirstValues:
    first: list[float] = field(default_factory=list)
    count: int = FIRST_VALUES  # number of values that are kept

    def take(self, value: float) -> None:
        if len(self.first) < self.count:
            self.first.append(value)

    def matters(self, value: float, level: float | None = None, noise: float = 0.0) -> bool:
        """Whether a rise from a level to a value is trouble, given the noise as a share of the level."""
        return (level is not None and level < 0) or value >= negligible_level(self.first, level, noise)


@dataclass(slots=True)
class LossFall:
    begun: FirstValues = field(default_factory=FirstValues)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_VALUES))

    def take(self, value: float) -> None:
        begun = self.begun
        if len(begun.first) < begun.count:  # inlined `FirstValues.take`: called at every step, for many detectors
            begun.first.append(value)
        self.recent.append(value)

    def share(self) -> float | None:
        """Return the share of the start that is left; None where it is too early, or the loss is negative."""
        if len(self.begun.first) < self.begun.count:
            return None
        # Not the level of the baseline, which does not follow a loss that jumped when its gradient vanished.
        start, now = median(self.begun.first), median(self.recent)
        return now / start if start > 0 and now >= 0 else None

    def size_at_start(self) -> float:
        """Return the size of the first losses, at most 1; 1 without losses.

        A loss that is multiplied by a small number has gradients that are as small, and trains as well.
        """
        first = self.begun.first
        return min(1.0, abs(median(first))) if first else 1.0

    def has_fallen_to(self, share: float) -> bool:
        """Whether at most this share of the start is left; during the first steps, of the very first value."""
        left = self.share()
        if left is not None:
            return left <= share
        first = self.begun.first
        return len(first) > EARLY_VALUES and 0 <= median([*self.recent][-EARLY_VALUES:]) <= share * first[0]

    def learnt(self) -> bool:
        """Whether almost nothing of the loss is left."""
        if not self.recent:
            return False
        now = median(self.recent)
        return now >= 0 and not self.begun.matters(now)


@dataclass(slots=True)
class LossFalls:
    by_place: dict[str, LossFall] = field(default_factory=dict)

    def take(self, place: str, value: float) -> None:
        fall = self.by_place.get(place)
        if fall is None:
            fall = self.by_place[place] = LossFall()
        fall.take(value)

    def share(self) -> float | None:
        """Return the share that is left of the loss that has fallen least; None where one is not known."""
        shares = [share for fall in self.by_place.values() if (share := fall.share()) is not None]
        return max(shares) if shares and len(shares) == len(self.by_place) else None

    def learnt(self) -> bool:
        """Whether almost nothing is left of any loss."""
        return bool(self.by_place) and all(fall.learnt() for fall in self.by_place.values())
