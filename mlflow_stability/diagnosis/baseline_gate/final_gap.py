"""Says how far the loss of one run lies above that of another where both are still there, and what chance explains.

In: cards. Out: both levels over the same last stretch of steps, and the standard deviation of their difference by
chance: the noise of both curves and how far they wander, or the spread of repetitions. Guarantees: a run that is
shorter, longer or logged at another rate is compared over the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.result import LossLevels, RunCard

LAST = 5
"""Levels at the end of the coarser course that its final level is taken from."""
PLACES = 100
"""A stretch is read at so many places."""
BEFORE = 8
"""So many stretches of the same length before the last one show how far the difference of two courses wanders."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The end of two courses, one beside the other."""

    since: int
    """The last stretch begins behind this step."""
    step: int
    """And ends here."""
    mine: float
    theirs: float
    wide: float
    """How far mine lies above: in nats where `logarithmic`, else in units of the loss."""
    noise: float
    logarithmic: bool


def gap_between(card: RunCard, baseline: RunCard) -> Gap | None:
    """At the last step that both have; None where they cannot be compared."""
    one, other = card.course, baseline.course
    if one is None or other is None or one.logarithmic != other.logarithmic:
        return None
    if card.last_step is None or baseline.last_step is None:
        return None
    step = min(card.last_step, baseline.last_step)
    width = LAST * max(_block(one), _block(other))
    mine, theirs = level_of(one, step - width, step), level_of(other, step - width, step)
    if mine is None or theirs is None:
        return None
    wide = math.log(mine / theirs) if one.logarithmic else mine - theirs
    noise = max(math.hypot(_error(one, width), _error(other, width)), _wandering(one, other, step, width))
    return Gap(round(step - width), step, mine, theirs, wide, noise, one.logarithmic)


def level_of(course: LossLevels, since: float, until: float) -> float | None:
    """The level of this stretch; None where the course has no block that begins there.

    It is read at the same places of every course: blocks of unequal length that begin in the same stretch do not have
    their middles in the same place, and a falling loss would look higher where they lie earlier.
    """
    low, high = np.searchsorted(course.steps, (since, until), side="right")
    if low == high:
        return None
    middles = np.asarray(course.steps) + (_block(course) - 1) / 2
    return float(np.median(np.interp(np.linspace(since, until, PLACES + 1)[1:], middles, course.levels)))


def spread_of(levels: Sequence[float], *, logarithmic: bool) -> float:
    """How much a level varies over repetitions."""
    return float(np.std(np.log(levels) if logarithmic else levels, ddof=1))


def _block(course: LossLevels) -> float:
    return float(np.median(np.diff(course.steps))) if len(course.steps) > 1 else 1.0


def _error(course: LossLevels, width: float) -> float:
    """Of the median of the levels in such a stretch."""
    return course.noise * math.sqrt(math.pi / 2 / max(1.0, width / _block(course)))


def _wandering(one: LossLevels, other: LossLevels, step: int, width: float) -> float:
    """How much the difference of the courses varies from stretch to stretch, around a line."""
    edges = step - width * np.arange(BEFORE + 1, -1, -1)
    pairs = [(level_of(one, low, high), level_of(other, low, high)) for low, high in pairwise(edges)]
    found = [(math.log(a / b) if one.logarithmic else a - b) for a, b in pairs if a is not None and b is not None]
    if len(found) < BEFORE // 2:
        return 0.0
    differences: NDArray[np.float64] = np.array(found)
    places = np.arange(len(differences))
    around = differences - np.polyval(np.polyfit(places, differences, 1), places)
    return float(np.sqrt((around**2).sum() / (len(differences) - 2)))
