"""Read a noisy curve as about a hundred levels with a known uncertainty, for rules about whole curves.

Positive curves are judged on a logarithmic scale, where a change is a share of the level. A curve that reaches zero or
below is divided by its own spread, so that no rule mistakes the sign of a policy's loss for a change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, Curve, median_deviation
from mlflow_stability.vocabulary.result import Sketch

BLOCKS = 100  # approximate number of levels of a long curve
SMALLEST_NOISE = 0.002  # smallest uncertainty of a level, in nats: rounding in the log makes constant stretches
MANY_VALUES = 40  # minimum number of values for an estimate of the noise that a few spikes do not distort


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    steps: NDArray[np.int64]  # the first step of each block
    x: NDArray[np.float64]  # median of each block, on the judged scale
    noise: float  # standard deviation of one median around the trend of the curve
    logarithmic: bool  # whether `x` is the logarithm; else values in units of the curve's own spread
    size: int  # number of points in a block
    raw_steps: NDArray[np.int64]
    raw_x: NDArray[np.float64]  # every finite point, on the same scale

    def __len__(self) -> int:
        return len(self.x)


def to_judged_scale(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    """Return finite values on the judged scale, and whether that is the logarithm."""
    lowest = float(values.min())
    if lowest > 0:
        return np.log(values), True
    if lowest == 0 and (values > 0).mean() > 0.5:
        floor = 1e-3 * float(np.median(values[values > 0]))
        return np.log(values + floor), True
    low, high = np.percentile(values, [25, 75])
    spread = float(high - low) / 1.349
    return values / (spread if spread > 0 else 1.0), False


def read_levels(curve: Curve) -> Levels | None:
    """Return the curve in blocks; None where fewer than two points are finite."""
    finite = curve.finite
    values, steps = curve.values[finite], curve.steps[finite]
    if len(values) < 2:
        return None
    x, logarithmic = to_judged_scale(values)
    size = max(1, len(x) // BLOCKS)
    whole = len(x) - len(x) % size
    tail = [x[whole:]] if len(x) - whole >= (size + 1) // 2 else []
    blocks = np.median(x[:whole].reshape(-1, size), axis=1)
    medians = np.concatenate([blocks, *([np.median(points)] for points in tail)])
    firsts = steps[: (whole if not tail else len(x)) : size]
    return Levels(firsts, medians, level_noise(medians), logarithmic, size, steps, x)


def level_noise(x: NDArray[np.float64]) -> float:
    """Return the standard deviation of single values around a trend that may rise, fall or bend.

    It is estimated from the distance of each value to the line between its neighbours. With few values a single spike
    distorts this more than it distorts plain differences, which a steep trend distorts: then the smaller one counts.
    """
    if len(x) < 4:
        return float("inf")
    bends = np.abs(x[:-2] - 2 * x[1:-1] + x[2:])
    noise = float(np.median(bends)) / math.sqrt(6)
    if len(x) < MANY_VALUES:
        differences = np.diff(x)
        noise = min(noise, median_deviation(differences) / math.sqrt(2))
    return max(noise * NORMAL_MAD, SMALLEST_NOISE)


def coarsen(levels: Levels, blocks: int) -> tuple[NDArray[np.float64], int]:
    """Return the levels in at most about this number of blocks, and how many levels make one."""
    size = max(1, len(levels.x) // blocks)
    whole = len(levels.x) - len(levels.x) % size
    return np.median(levels.x[:whole].reshape(-1, size), axis=1), size


def onset(levels: Levels, best: int, limit: float) -> int:
    """Return the point from which the curve stayed above a limit: the minimum of the cumulative distance above it."""
    first = best * levels.size
    above = np.clip(levels.raw_x[first:] - limit, -10 * max(levels.noise, 0.01), 10 * max(levels.noise, 0.01))
    return min(first + int(np.argmin(np.cumsum(above))) + 1, len(levels.raw_x) - 1)


STRETCHES = 400  # maximum number of stretches of a sketch


def make_sketch(curve: Curve) -> Sketch:
    """Reduce a curve to stretches of equally many points, so that a spike of one step is still visible."""
    count = len(curve.values)
    edges = np.unique(np.linspace(0, count, min(count, STRETCHES) + 1).astype(np.int64))[:-1]
    if not len(edges):
        return Sketch(curve.name, (), (), ())
    finite = curve.finite
    low = np.minimum.reduceat(np.where(finite, curve.values, np.inf), edges)
    high = np.maximum.reduceat(np.where(finite, curve.values, -np.inf), edges)
    empty = np.isinf(low)
    low, high = np.where(empty, np.nan, low), np.where(empty, np.nan, high)
    return Sketch(curve.name, tuple(curve.steps[edges].tolist()), tuple(low.tolist()), tuple(high.tolist()))


MIN_VALUES = 40  # fewer values do not show the resolution of a log
ROUNDING_STEPS = 2.5  # a change of at most this multiple of the log's resolution is rounding


def log_quantum(values: NDArray[np.float64]) -> float:
    """Return the resolution of a log, such as 0.0001: the smallest difference between two values; 0 for few values."""
    if len(values) < MIN_VALUES:
        return 0.0
    distinct = np.unique(values)
    gaps = np.diff(distinct)
    # Floating-point error is relative to the two values, not to the largest of all, which may be 1e30.
    gaps = gaps[gaps > 1e-12 * np.maximum(np.abs(distinct[1:]), np.abs(distinct[:-1]))]
    return float(gaps.min()) if len(gaps) else 0.0


def is_rounding(values: NDArray[np.float64], change: float) -> bool:
    return change <= ROUNDING_STEPS * log_quantum(values) * (1 + 1e-9)
