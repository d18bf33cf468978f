"""Stretches of a curve that stand above what came before and what came after, at every length.

In: a curve on the scale that is judged. Out: stretches of two points up to a fifth of the curve, each with its first
and last point, the level beside it, and its height over that. Guarantees: no two of them touch; one that the log ends
in is none, for nobody saw it come back; a rise that undid less than twice its own length of progress is none.

A stretch is compared with the medians of as many points before it and behind it as it has itself, and a few at least,
and stands out by what it is above the higher of both: neither a falling curve nor a lasting step makes a bump. Its
noise is how two such stretches, one right behind the other, differ elsewhere in the same curve, so that neighbouring
points that err together, as they do in running means and in a wandering curve, are allowed for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, median_deviation
from mlflow_stability.curves.prominence import median_of_each, noise_of_points, tail_limit

WIDTHS = (2, 3)
"""Blocks of 1, 2, 4, ... points are looked at in stretches of so many: of 2, 3, 4, 6, 8, 12, ... points."""
LONGEST = 0.2
"""The longest stretch, as a share of the points: what is longer is a part of the training."""
FEWEST_BESIDE, MOST_BESIDE = 3, 8
"""So many blocks on each side say what is usual there."""
EDGE = 0.25
"""A bump reaches as far as the curve is above the level beside it by this share of the height."""
FURTHER = 1.3
"""How much further out it is than the tail of what stretches of the same curve do once in twenty runs."""
BEFORE, BELOW = 3, 2 / 3
"""In so many times its own length before it, so much of the curve was below the half of its height: a ripple on the way
down undoes nothing."""
OVERSHOOT = math.log(2)
"""And where the curve has not been so long yet: so far it rises above what came before it, in nats."""


@dataclass(frozen=True, slots=True)
class Bump:
    """One stretch, as places in the curve."""

    first: int
    last: int
    level: float
    """The higher of both sides, on the scale that is judged."""
    height: float
    """How far the median of the stretch is above that."""
    z: float
    """The same in deviations of the noise of such stretches."""


def bumps_of(x: NDArray[np.float64], deviations: float, height: float, share_of_tail: float = 1.0) -> list[Bump]:
    """The stretches that stand out so far, the furthest first."""
    found: list[Bump] = []
    for each in sorted(_candidates(x, deviations, height, share_of_tail), key=lambda each: -each.z):
        if not any(each.first <= one.last and one.first <= each.last for one in found):
            found.append(_whole(each, x))
    return found


def _candidates(x: NDArray[np.float64], deviations: float, height: float, share_of_tail: float) -> Iterator[Bump]:
    size, single = 1, noise_of_points(x)
    while size * WIDTHS[0] <= LONGEST * len(x):
        count = len(x) // size
        blocks = _lower_median(x[: count * size].reshape(count, size))
        for width in WIDTHS:
            if width * size <= LONGEST * len(x):
                least = single / math.sqrt(width * size)
                yield from _of_width(blocks, width, size, least, deviations, height, share_of_tail)
        size *= 2


def _of_width(
    blocks: NDArray[np.float64],
    width: int,
    size: int,
    least: float,
    deviations: float,
    height: float,
    share_of_tail: float,
) -> Iterator[Bump]:
    """The stretches of so many blocks, in places of points."""
    beside = max(FEWEST_BESIDE, width, min(MOST_BESIDE, len(blocks) // 8))
    inside = _lower_median(np.lib.stride_tricks.sliding_window_view(blocks, width))
    padded = np.concatenate([np.full(beside, np.nan), blocks, np.full(beside, np.nan)])
    sides = median_of_each(np.lib.stride_tricks.sliding_window_view(padded, beside))
    left, right = sides[: len(inside)], sides[beside + width :]
    level = np.fmax(left, right)
    level[0] = level[-2:] = np.inf  # nothing came before it, or too little after it to say that it came back
    above = inside - level
    top = int(np.argmax(above))
    noise = max(least, _noise(inside, width, top))
    if above[top] < max(height, deviations * noise):
        return
    tail = tail_limit(_elsewhere(above, top, width) / noise, len(blocks))
    limit = max(deviations, share_of_tail * FURTHER * tail)
    for place in np.flatnonzero((above >= height) & (above >= limit * noise)).tolist():
        before = blocks[max(0, place - BEFORE * width) : place]
        half = float(level[place]) + float(above[place]) / 2
        new = len(before) < BEFORE * width
        if float(inside[place] - left[place]) >= OVERSHOOT if new else (before < half).mean() >= BELOW:
            first, z = place * size, float(above[place]) / noise
            yield Bump(first, first + width * size - 1, float(level[place]), float(above[place]), z)


def _elsewhere(above: NDArray[np.float64], top: int, width: int) -> NDArray[np.float64]:
    """The heights without the highest and what belongs to it, which may be the trouble."""
    low = np.flatnonzero(above <= EDGE * above[top])
    before, behind = low[low < top], low[low > top]
    first = (int(before[-1]) + 1 if len(before) else 0) - width
    last = (int(behind[0]) if len(behind) else len(above)) + width
    return np.concatenate([above[: max(0, first)], above[last:]])


def _lower_median(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of each, or the lower of both middle values: a single point of two or four makes no stretch."""
    middle = (windows.shape[1] - 1) // 2
    return np.asarray(np.partition(windows, middle, axis=1)[:, middle])


def _noise(inside: NDArray[np.float64], width: int, highest: int) -> float:
    """How stretches differ from those right behind them, where the highest of all is in neither."""
    differences = inside[width:] - inside[:-width]
    places = np.arange(len(differences))
    kept = differences[(np.abs(places - highest) >= width) & (np.abs(places + width - highest) >= width)]
    if len(kept) < 3:
        return math.inf
    return NORMAL_MAD * median_deviation(kept) / math.sqrt(2)


def _whole(bump: Bump, x: NDArray[np.float64]) -> Bump:
    """From the first point to the last that belong to it."""
    limit = bump.level + EDGE * bump.height
    peak = bump.first + int(np.argmax(x[bump.first : bump.last + 1]))
    below = np.flatnonzero(x <= limit)
    before, behind = below[below < peak], below[below > peak]
    first = int(before[-1]) + 1 if len(before) else 0
    last = int(behind[0]) - 1 if len(behind) else len(x) - 1
    return Bump(first, last, bump.level, bump.height, bump.z)
