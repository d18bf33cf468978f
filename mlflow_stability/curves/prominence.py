"""Find points and stretches of a curve that are above what is beside them, at every length.

Both are compared with the higher of the levels before and after them, so that neither a falling curve nor a lasting
step is one. The first point and what the log ends in are never found: nothing came before, or nothing shows that it
came back. The noise of a stretch is the difference of consecutive stretches elsewhere in the curve, which allows for
neighbouring points that err together, as in running means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, median_deviation

MIN_TAIL_POINTS = 40  # minimum number of points to fit a tail
PRIOR_SHAPE, PRIOR_POINTS = 0.15, 10  # usual shape of the tails of losses, and its weight in points of the curve
GAP_RATIO, MAX_APART_SHARE, MIN_APART_DEVIATIONS = 2.0, 0.1, 2.0
"""Points are outliers if they are this many times as far out as the next ones, or as this many deviations where those
are closer; at most this share of all points."""
SHAPE_CORRECTION = 0.05
"""Added to the shape of a tail because its furthest points, which may be the trouble, are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Jumps:
    """The heights of the points of one curve."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    height: NDArray[np.float64]  # above the higher of both sides, in nats
    before: NDArray[np.float64]  # level of that side, on the judged scale
    z: NDArray[np.float64]  # the height in deviations of the noise
    x: NDArray[np.float64]  # the values on the judged scale
    logarithmic: bool = True  # whether that is the logarithm

    def value_of(self, level: float) -> float:
        """Convert a level to the unit of the log."""
        if self.logarithmic:
            return math.exp(min(level, 700.0))
        far = int(np.argmax(np.abs(self.x)))
        return level * float(self.values[far] / self.x[far]) if self.x[far] else level

    def far(self, deviations: float, height: float) -> NDArray[np.bool_]:
        """Return the mask of points that are at least this high."""
        return (self.z >= deviations) & (self.height >= height)


def find_jumps(
    steps: NDArray[np.int64], values: NDArray[np.float64], x: NDArray[np.float64], reach: int, logarithmic: bool = True
) -> Jumps:
    """Return the heights of all points of a curve whose values are ``x`` on the judged scale."""
    height, before = prominence(x, reach)
    return Jumps(steps, values, height, before, height / point_noise(x, height), x, logarithmic)


def prominence(x: NDArray[np.float64], reach: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the height of each point above the higher of the medians on its two sides, and that median."""
    padded = np.concatenate([np.full(reach, np.nan), x, np.full(reach, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach)
    left, right = windows[: len(x)], windows[reach + 1 :]
    with np.errstate(all="ignore"):
        sides = np.stack([window_medians(left), window_medians(right)])
    level: NDArray[np.float64] = np.fmax(sides[0], sides[1])
    level[0] = np.inf  # nothing came before it
    return x - level, level


def window_medians(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of the values in each window, without NaN; NaN where there are no values."""
    # `np.nanmedian` takes four times as long for short windows.
    ordered = np.sort(windows, axis=1)  # NaN last
    count = windows.shape[1] - np.count_nonzero(np.isnan(windows), axis=1)
    rows = np.arange(len(windows))
    middle: NDArray[np.float64] = ordered[rows, np.maximum(count - 1, 0) // 2] + ordered[rows, count // 2 * (count > 0)]
    return middle / 2


def point_noise(x: NDArray[np.float64], height: NDArray[np.float64] | None = None) -> float:
    """Return the noise of single points from differences of neighbours, without the two highest points."""
    kept: NDArray[np.bool_] = np.ones(len(x), np.bool_)
    if len(x) >= 6 and height is not None:
        kept[np.argsort(height)[-2:]] = False
    differences = np.diff(x)[kept[1:] & kept[:-1]]
    return max(NORMAL_MAD * median_deviation(differences) / math.sqrt(2), 1e-3)


def _without_outliers(ordered: NDArray[np.float64]) -> int:
    """Return the number of sorted points without outliers.

    Three or more points above a gap as wide as everything below it are not the tail of the noise: they do not show how
    far the noise reaches, however many there are.
    """
    low = int(len(ordered) * (1 - MAX_APART_SHARE))
    upper = ordered[low:]
    if len(upper) < 2:
        return len(ordered)
    wide = np.flatnonzero(upper[1:] >= GAP_RATIO * np.maximum(upper[:-1], MIN_APART_DEVIATIONS))
    place = low + int(wide[0]) + 1 if len(wide) else len(ordered)
    return place if len(ordered) - place >= 3 else len(ordered)


def tail_limit(z: NDArray[np.float64], count: int) -> float:
    """Return the height that a tail like this one reaches once in twenty such runs; 0 for very few points.

    A Pareto tail is fitted to the upper tenth, without its furthest points, which may be the trouble; for few points
    its shape is mostly the usual one.
    """
    ordered = np.sort(z[np.isfinite(z)])
    ordered = ordered[: min(len(ordered) - max(2, len(ordered) // 300), _without_outliers(ordered))]
    if len(ordered) < MIN_TAIL_POINTS:
        return 0.0
    edge = float(ordered[-len(ordered) // 10])
    excess = ordered[ordered > edge] - edge
    mean = float(excess.mean()) if len(excess) else 0.0
    if len(excess) < 3 or mean <= 0:
        return 0.0
    weighted = float((excess * np.arange(len(excess) - 1, -1, -1)).mean()) / (len(excess) - 1)
    steepness = mean - 2 * weighted
    shape = min(0.5, max(0.0, 2 - mean / steepness)) if steepness > 0 else 0.5
    shape = (shape * len(excess) + PRIOR_SHAPE * PRIOR_POINTS) / (len(excess) + PRIOR_POINTS) + SHAPE_CORRECTION
    width = mean * (1 - min(shape, 0.5))
    times = 20 * count * len(excess) / len(ordered)
    return edge + width / shape * (float(times**shape) - 1)


WIDTHS = (2, 3)  # numbers of blocks of 1, 2, 4, ... points in a stretch: stretches have 2, 3, 4, 6, 8, 12, ... points
MAX_SHARE = 0.2  # longest stretch, as a share of the points
MIN_BESIDE, MAX_BESIDE = 3, 8  # number of blocks on each side for its level
EDGE_SHARE = 0.25  # a bump extends to where the curve falls to this share of its height
TAIL_FACTOR = 1.3  # a bump exceeds the limit of the tail of all stretches by this factor
LOOKBACK_LENGTHS, MIN_SHARE_BELOW = 3, 2 / 3
"""In this multiple of its length before it, this share of the curve was below half of its height: a ripple on the way
down undoes no progress."""
OVERSHOOT = math.log(2)  # where the curve before it is shorter than that: minimum rise above it, in nats


@dataclass(frozen=True, slots=True)
class Bump:
    """One stretch, by the indices of its points."""

    first: int
    last: int
    level: float  # the higher of both sides, on the judged scale
    height: float  # height of the median of the stretch above that
    z: float  # height in deviations of the noise of such stretches


def find_bumps(x: NDArray[np.float64], deviations: float, height: float, share_of_tail: float = 1.0) -> list[Bump]:
    """Return the stretches of at least this height that do not overlap, the highest first."""
    bumps: list[Bump] = []
    for candidate in sorted(_candidates(x, deviations, height, share_of_tail), key=lambda bump: -bump.z):
        if not any(candidate.first <= bump.last and bump.first <= candidate.last for bump in bumps):
            peak = candidate.first + int(np.argmax(x[candidate.first : candidate.last + 1]))
            first, last = _ends(x <= candidate.level + EDGE_SHARE * candidate.height, peak)
            bumps.append(replace(candidate, first=first, last=last))
    return bumps


def _ends(low: NDArray[np.bool_], top: int) -> tuple[int, int]:
    """Return the first and last place that belong to a top: up to the nearest low ones."""
    before, behind = np.flatnonzero(low[:top]), np.flatnonzero(low[top + 1 :])
    return int(before[-1]) + 1 if len(before) else 0, top + int(behind[0]) if len(behind) else len(low) - 1


def _candidates(x: NDArray[np.float64], deviations: float, height: float, share_of_tail: float) -> Iterator[Bump]:
    size, single, longest = 1, point_noise(x), MAX_SHARE * len(x)
    while size * WIDTHS[0] <= longest:
        count = len(x) // size
        blocks = _lower_median(x[: count * size].reshape(count, size))
        for width in (width for width in WIDTHS if width * size <= longest):
            beside = max(MIN_BESIDE, width, min(MAX_BESIDE, len(blocks) // 8))
            inside = _lower_median(np.lib.stride_tricks.sliding_window_view(blocks, width))
            padded = np.concatenate([np.full(beside, np.nan), blocks, np.full(beside, np.nan)])
            sides = window_medians(np.lib.stride_tricks.sliding_window_view(padded, beside))
            left, right = sides[: len(inside)], sides[beside + width :]
            level = np.fmax(left, right)
            level[0] = level[-2:] = np.inf  # nothing came before it, or too little after it to show that it came back
            above = inside - level
            top = int(np.argmax(above))
            noise = max(single / math.sqrt(width * size), _noise(inside, width, top))
            if above[top] < max(height, deviations * noise):
                continue
            # The tail without the highest stretch and what belongs to it, which may be the trouble.
            first, last = _ends(above <= EDGE_SHARE * above[top], top)
            elsewhere = np.concatenate([above[: max(0, first - width)], above[last + 1 + width :]])
            limit = max(deviations, share_of_tail * TAIL_FACTOR * tail_limit(elsewhere / noise, len(blocks)))
            for place in np.flatnonzero((above >= height) & (above >= limit * noise)).tolist():
                before = blocks[max(0, place - LOOKBACK_LENGTHS * width) : place]
                half = float(level[place]) + float(above[place]) / 2
                new = len(before) < LOOKBACK_LENGTHS * width
                if (
                    float(inside[place] - left[place]) >= OVERSHOOT
                    if new
                    else (before < half).mean() >= MIN_SHARE_BELOW
                ):
                    first, z = place * size, float(above[place]) / noise
                    yield Bump(first, first + width * size - 1, float(level[place]), float(above[place]), z)
        size *= 2


def _lower_median(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lower median of each window, so that a single point of two or four is no stretch."""
    middle = (windows.shape[1] - 1) // 2
    return np.asarray(np.partition(windows, middle, axis=1)[:, middle])


def _noise(inside: NDArray[np.float64], width: int, highest: int) -> float:
    """Return the noise of stretches from differences of consecutive ones, without the highest."""
    differences = inside[width:] - inside[:-width]
    places = np.arange(len(differences))
    kept = differences[(np.abs(places - highest) >= width) & (np.abs(places + width - highest) >= width)]
    if len(kept) < 3:
        return math.inf
    return NORMAL_MAD * median_deviation(kept) / math.sqrt(2)
