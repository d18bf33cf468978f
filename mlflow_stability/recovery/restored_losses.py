"""Tells from the losses after a rollback whether the weights were to blame, or the data and the loss function.

In: losses by step, and which state was restored. Out: what a state gave when it was trained the first time, and whether
the same weights give clearly more now. Pure but for what it remembers: no clock, no tensors.

The first loss after a rollback is computed before any update, from weights that are known: if it has risen already,
only the data or the loss function can have changed. A single batch is noisy, so the median of the first three losses
is compared with the losses around that state, in standard errors; and the very first one must have risen, too, which
rules out that the updates since are to blame. A learning rate that is too high leaves the first loss where it was.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import fmean, median

AROUND = 32
"""So many losses before a state, and after it, say what it gave: as many as a baseline needs (`engine.baseline`)."""
FIRST = 3
"""So many losses after a rollback are compared with them: half of the learning rate moves the weights little in them.
Of one alone, one bad batch would make a change of the data."""
FEWEST = 8
"""With fewer losses around a state nothing is known of their spread."""
STANDARD_ERRORS = 5.0
"""How far the median of the first losses must lie above: normal noise does so once in ten million rollbacks, noise
with the tails of Student's t of 3 degrees of freedom once in some thousand."""
AT_ONCE = 0.5
"""The share of the whole rise that the very first loss must show, before any update."""
SMALLEST_SPREAD = 2e-3
"""The least spread, as a share of the level: that of a baseline."""
REMEMBERED = 4096
"""So many losses of each part of a training are remembered: more steps than lie between the states in memory."""
_QUARTILES_TO_SIGMA = 1 / 1.349
_ERROR_OF_MEDIAN = 1.25
"""By how much the standard error of a median exceeds that of a mean."""


class LossHistory:
    """The losses of one training, and what its states gave."""

    def __init__(self) -> None:
        self._losses: dict[str, tuple[list[int], list[float]]] = {}
        """By place, as the halves of a GAN have losses of their own."""
        self._breaks: list[int] = []
        """The steps after which a rollback followed."""
        self._changed_at = -1
        self._given: dict[int, tuple[float, ...]] = {}
        """What restored states gave after the data had changed."""

    def take(self, step: int, loss: float, place: str = "") -> None:
        """Take the loss of a step that was taken."""
        if not math.isfinite(loss):
            return
        steps, losses = self._losses.setdefault(place, ([], []))
        steps.append(step)
        losses.append(loss)
        if len(steps) > 2 * REMEMBERED:
            del steps[:REMEMBERED], losses[:REMEMBERED]

    @property
    def has_taken(self) -> bool:
        """Whether any step was taken with a finite loss."""
        return bool(self._losses)

    def around(self, state: int, place: str, proven_by: int) -> tuple[float, ...]:
        """What the weights of a state gave; `proven_by`: so many healthy steps have followed it."""
        if state in self._given:
            return self._given[state]
        if state <= self._changed_at:
            return ()
        first = max((each for each in self._breaks if each < state), default=-1)
        last = min((each for each in self._breaks if each >= state), default=state + AROUND)
        return self._between(max(first, state - AROUND) + 1, min(last, state + min(AROUND, proven_by)), place)

    def last(self, step: int, count: int, place: str) -> tuple[float, ...]:
        """The losses of so many steps up to this one."""
        return self._between(step - count + 1, step, place)

    def from_step(self, step: int) -> float:
        """The first loss from a step on; NaN where there is none."""
        found = [
            (steps[at], losses[at])
            for steps, losses in self._losses.values()
            if (at := bisect_left(steps, step)) < len(steps)
        ]
        return min(found, default=(step, math.nan))[1]

    def rolled_back(self, step: int) -> None:
        """The training was rolled back after this step: the next loss is of other weights."""
        self._breaks.append(step)

    def changed(self, step: int, state: int, losses: tuple[float, ...]) -> None:
        """The data had changed before this step: what states gave until then is no measure; a state gives this now."""
        self._changed_at, self._given = step, {state: losses}

    def _between(self, first: int, last: int, place: str) -> tuple[float, ...]:
        steps, losses = self._losses.get(place, ([], []))
        return tuple(losses[bisect_left(steps, first) : bisect_right(steps, last)])


def midpoint(low: float, high: float) -> float:
    """Half way between two losses: of positive ones by their ratio, for a loss may grow by many powers of ten."""
    return math.sqrt(low) * math.sqrt(high) if min(low, high) > 0 else (low + high) / 2


def highest_mean(losses: Sequence[float], count: int) -> float:
    """The highest mean of so many losses in a row, as of the first ones of a training whose loss falls; or NaN."""
    if not losses:
        return math.nan
    parts = [losses[at : at + count] for at in range(max(1, len(losses) - count + 1))]
    return max(map(fmean, parts))


def gives_no_less(given: Sequence[float], left: Sequence[float], first: Sequence[float], now: Sequence[float]) -> bool:
    """Whether restored weights give a loss as high as that before the rollback, so that the rollback did not help.

    `given` are the losses around the restored state when it was trained, `left` the last ones before the rollback,
    `first` the first ones after it, `now` all since. Not where that state gave such losses before, as early states do,
    nor where most of the rise came after the first update.
    """
    if len(given) < FEWEST or len(first) < FIRST or not left:
        return False
    level, before = median(given), median(left)
    lowest = min(first[0], median(first), median(now))
    # Compared with as few losses as are known of the unchanged weights: early in a training the loss falls within a few
    # steps, and with the reduced learning rate more slowly than it did.
    if lowest <= midpoint(level, before) or lowest <= highest_mean(given, FIRST):
        return False
    return first[0] - level >= AT_ONCE * (fmean(now) - level)


def gives_more(given: Sequence[float], first: Sequence[float], now: Sequence[float], limit: float) -> bool:
    """Whether the same weights give clearly more than they gave, so that they are not to blame.

    `given` are the losses around the restored state, `first` the first ones after the rollback, `now` the last ones;
    above `limit` a loss is nearer to that before the rollback than to its level.
    """
    if len(given) < FEWEST or len(first) < FIRST or min(first[0], median(first)) <= limit:
        return False
    if min(*given, *first, *now) > 0:
        given, first, now = ([math.log(each) for each in losses] for losses in (given, first, now))
        smallest = SMALLEST_SPREAD
    else:
        smallest = SMALLEST_SPREAD * abs(median(given))
    level, ordered = median(given), sorted(given)
    quarter = len(ordered) // 4
    spread = (ordered[-1 - quarter] - ordered[quarter]) * _QUARTILES_TO_SIGMA + smallest
    rise = median(first) - level
    error = _ERROR_OF_MEDIAN * spread * math.sqrt(1 / len(first) + 1 / len(given))
    return rise >= STANDARD_ERRORS * error and first[0] - level >= AT_ONCE * (fmean(now) - level)
