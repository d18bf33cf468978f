"""How far each point of a curve stands above its neighbours, and how far points stand out by chance.

In: a curve on the scale that is judged. Out: for each point its height over the higher of the medians on its two sides,
so that neither a falling curve nor a lasting step makes a jump, and that height in deviations of the noise. Guarantees:
the first point has none, for nothing came before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, median_deviation

FEWEST_FOR_TAIL = 40
"""A tail is fitted to so many points or more."""
USUAL_SHAPE, USUAL_COUNT = 0.15, 10
"""How heavy the tails of losses usually are, and how many points of a curve's own outweigh that."""
APART, APART_SHARE, APART_FROM = 2.0, 0.1, 2.0
"""Points stand apart that are so many times as far out as the next ones, or as so many deviations where those are
closer; at most this share of all does."""
LEFT_OUT = 0.05
"""What is added to the heaviness of a tail because its furthest points, which may be the trouble, are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Jumps:
    """The points of one curve."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    height: NDArray[np.float64]
    """Over the higher of both sides, in nats."""
    before: NDArray[np.float64]
    """That side, on the scale that is judged."""
    z: NDArray[np.float64]
    """The height in deviations of the noise."""
    x: NDArray[np.float64]
    """The values on the scale that is judged."""
    logarithmic: bool = True
    """Whether that is the logarithm."""

    def value_of(self, level: float) -> float:
        """A level as the log would print it."""
        if self.logarithmic:
            return math.exp(min(level, 700.0))
        far = int(np.argmax(np.abs(self.x)))
        return level * float(self.values[far] / self.x[far]) if self.x[far] else level

    def far(self, deviations: float, height: float) -> NDArray[np.bool_]:
        """Which points stand out so far."""
        return (self.z >= deviations) & (self.height >= height)


def jumps_of(
    steps: NDArray[np.int64], values: NDArray[np.float64], x: NDArray[np.float64], reach: int, logarithmic: bool = True
) -> Jumps:
    """The jumps of a curve whose values are ``x`` on the scale that is judged."""
    height, before = prominence(x, reach)
    return Jumps(steps, values, height, before, height / noise_of_points(x, height), x, logarithmic)


def prominence(x: NDArray[np.float64], reach: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far each point is above the higher of the medians on its two sides, and that median."""
    padded = np.concatenate([np.full(reach, np.nan), x, np.full(reach, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach)
    left, right = windows[: len(x)], windows[reach + 1 :]
    with np.errstate(all="ignore"):
        sides = np.stack([median_of_each(left), median_of_each(right)])
    level: NDArray[np.float64] = np.fmax(sides[0], sides[1])
    level[0] = np.inf  # nothing came before it
    return x - level, level


def median_of_each(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of the values there are in each window; NaN where there is none."""
    empty: NDArray[np.bool_] = np.asarray(np.isnan(windows).all(axis=1))
    filled = np.where(empty[:, None], 0.0, windows)
    return np.where(empty, np.nan, np.nanmedian(filled, axis=1))


def noise_of_points(x: NDArray[np.float64], height: NDArray[np.float64] | None = None) -> float:
    """The noise of single points: from how neighbours differ, those of the two highest points left out."""
    kept: NDArray[np.bool_] = np.ones(len(x), np.bool_)
    if len(x) >= 6 and height is not None:
        kept[np.argsort(height)[-2:]] = False
    differences = np.diff(x)[kept[1:] & kept[:-1]]
    return max(NORMAL_MAD * median_deviation(differences) / math.sqrt(2), 1e-3)


def _apart(ordered: NDArray[np.float64]) -> int:
    """How many of the sorted points are left when those that stand apart from all others are taken away.

    Three or more points with an empty stretch below them, as wide as everything under it, are no tail of one noise:
    however many such spikes there are, they say nothing about how far the noise reaches.
    """
    low = int(len(ordered) * (1 - APART_SHARE))
    upper = ordered[low:]
    if len(upper) < 2:
        return len(ordered)
    wide = np.flatnonzero(upper[1:] >= APART * np.maximum(upper[:-1], APART_FROM))
    place = low + int(wide[0]) + 1 if len(wide) else len(ordered)
    return place if len(ordered) - place >= 3 else len(ordered)


def tail_limit(z: NDArray[np.float64], count: int) -> float:
    """What a tail like this one reaches once in twenty such runs; 0 for very few points.

    A Pareto tail is fitted to the upper tenth, without its furthest points, which may be the trouble; of few points it
    is mostly what a usual tail would reach.
    """
    ordered = np.sort(z[np.isfinite(z)])
    ordered = ordered[: min(len(ordered) - max(2, len(ordered) // 300), _apart(ordered))]
    if len(ordered) < FEWEST_FOR_TAIL:
        return 0.0
    edge = float(ordered[-len(ordered) // 10])
    excess = ordered[ordered > edge] - edge
    mean = float(excess.mean()) if len(excess) else 0.0
    if len(excess) < 3 or mean <= 0:
        return 0.0
    weighted = float((excess * np.arange(len(excess) - 1, -1, -1)).mean()) / (len(excess) - 1)
    steepness = mean - 2 * weighted
    shape = min(0.5, max(0.0, 2 - mean / steepness)) if steepness > 0 else 0.5
    shape = (shape * len(excess) + USUAL_SHAPE * USUAL_COUNT) / (len(excess) + USUAL_COUNT) + LEFT_OUT
    width = mean * (1 - min(shape, 0.5))
    times = 20 * count * len(excess) / len(ordered)
    return edge + width / shape * (float(times**shape) - 1)
