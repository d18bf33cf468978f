"""Decide from the losses after a rollback whether the weights were to blame, or the data or loss function changed.

The first loss after a rollback is computed before any update, from known weights: if it is high already, only the data
or the loss function can have changed. A single batch is noisy, so the median of the first three losses is compared with
the losses around that state, in standard errors; the very first must be high too, which rules out the updates since. A
learning rate that is too high leaves the first loss where it was.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import fmean, median

LOSSES_AROUND = 32  # losses before and after a state that describe it: as many as a baseline needs (`engine.baseline`)
FIRST_LOSSES = 3
"""Losses after a rollback that are compared: the reduced learning rate moves the weights little in them. A single bad
batch must not look like a change of the data."""
MIN_LOSSES = 8  # fewer losses around a state say nothing of their spread
STANDARD_ERRORS = 5.0
"""Threshold for the median of the first losses: exceeded by chance once in ten million rollbacks with normal noise,
once in some thousand with Student's t of 3 degrees of freedom."""
MIN_SHARE_AT_ONCE = 0.5  # share of the rise that the very first loss must show, before any update
MIN_SPREAD = 2e-3  # smallest spread as a share of the level, as in a baseline
LOSSES_REMEMBERED = 4096  # losses kept for each part of a training: more steps than lie between the states in memory
_QUARTILES_TO_SIGMA = 1 / 1.349
_ERROR_OF_MEDIAN = 1.25  # standard error of a median relative to that of a mean


class LossHistory:
    def __init__(self) -> None:
        self._losses: dict[str, tuple[list[int], list[float]]] = {}  # by place, such as the halves of a GAN
        self._breaks: list[int] = []  # steps after which a rollback followed
        self._changed_at = -1
        self._given: dict[int, tuple[float, ...]] = {}  # losses of restored states after the data had changed

    def take(self, step: int, loss: float, place: str = "") -> None:
        if not math.isfinite(loss):
            return
        steps, losses = self._losses.setdefault(place, ([], []))
        steps.append(step)
        losses.append(loss)
        if len(steps) > 2 * LOSSES_REMEMBERED:
            del steps[:LOSSES_REMEMBERED], losses[:LOSSES_REMEMBERED]

    @property
    def has_taken(self) -> bool:
        return bool(self._losses)

    def around(self, state: int, place: str, proven_by: int) -> tuple[float, ...]:
        """Return the losses around a state; `proven_by`: healthy steps that followed it."""
        if state in self._given:
            return self._given[state]
        if state <= self._changed_at:
            return ()
        first = max((step for step in self._breaks if step < state), default=-1)
        last = min((step for step in self._breaks if step >= state), default=state + LOSSES_AROUND)
        return self._between(
            max(first, state - LOSSES_AROUND) + 1, min(last, state + min(LOSSES_AROUND, proven_by)), place
        )

    def last(self, step: int, count: int, place: str) -> tuple[float, ...]:
        return self._between(step - count + 1, step, place)

    def from_step(self, step: int) -> float:
        """Return the first loss from a step on; NaN without one."""
        candidates = [
            (steps[at], losses[at])
            for steps, losses in self._losses.values()
            if (at := bisect_left(steps, step)) < len(steps)
        ]
        return min(candidates, default=(step, math.nan))[1]

    def rolled_back(self, step: int) -> None:
        """Note a rollback after this step: the next loss is of other weights."""
        self._breaks.append(step)

    def changed(self, step: int, state: int, losses: tuple[float, ...]) -> None:
        """Forget what states gave before this step, because the data changed; `state` gives `losses` now."""
        self._changed_at, self._given = step, {state: losses}

    def _between(self, first: int, last: int, place: str) -> tuple[float, ...]:
        steps, losses = self._losses.get(place, ([], []))
        return tuple(losses[bisect_left(steps, first) : bisect_right(steps, last)])


def midpoint(low: float, high: float) -> float:
    """Return the midpoint of two losses, geometric if both are positive."""
    return math.sqrt(low) * math.sqrt(high) if min(low, high) > 0 else (low + high) / 2


def highest_mean(losses: Sequence[float], count: int) -> float:
    """Return the highest mean of `count` consecutive losses, or of all if there are fewer; NaN without losses."""
    if not losses:
        return math.nan
    parts = [losses[at : at + count] for at in range(max(1, len(losses) - count + 1))]
    return max(map(fmean, parts))


def gives_no_less(given: Sequence[float], left: Sequence[float], first: Sequence[float], now: Sequence[float]) -> bool:
    """Whether restored weights give a loss as high as before the rollback, so that it did not help.

    `given`: losses around the restored state when it was trained. `left`: the last ones before the rollback. `first`:
    the first ones after it. `now`: all since. False where that state gave such losses before, as early states do, and
    where most of the rise came after the first update.
    """
    if len(given) < MIN_LOSSES or len(first) < FIRST_LOSSES or not left:
        return False
    level, before = median(given), median(left)
    lowest = min(first[0], median(first), median(now))
    # Compared with as few losses as are known of the unchanged weights: early in a training the loss falls within a few
    # steps, and with the reduced learning rate more slowly than it did.
    if lowest <= midpoint(level, before) or lowest <= highest_mean(given, FIRST_LOSSES):
        return False
    return first[0] - level >= MIN_SHARE_AT_ONCE * (fmean(now) - level)


def gives_more(given: Sequence[float], first: Sequence[float], now: Sequence[float], limit: float) -> bool:
    """Whether the same weights give clearly higher losses than before, so that they are not to blame.

    `given`: losses around the restored state. `first`: the first ones after the rollback. `now`: the last ones. Above
    `limit` a loss is nearer to that before the rollback than to its level.
    """
    if len(given) < MIN_LOSSES or len(first) < FIRST_LOSSES or min(first[0], median(first)) <= limit:
        return False
    if min(*given, *first, *now) > 0:
        given, first, now = ([math.log(loss) for loss in losses] for losses in (given, first, now))
        smallest = MIN_SPREAD
    else:
        smallest = MIN_SPREAD * abs(median(given))
    level, ordered = median(given), sorted(given)
    quarter = len(ordered) // 4
    spread = (ordered[-1 - quarter] - ordered[quarter]) * _QUARTILES_TO_SIGMA + smallest
    rise = median(first) - level
    error = _ERROR_OF_MEDIAN * spread * math.sqrt(1 / len(first) + 1 / len(given))
    return rise >= STANDARD_ERRORS * error and first[0] - level >= MIN_SHARE_AT_ONCE * (fmean(now) - level)
