"""Reads a noisy curve as a few levels with a known uncertainty: what every rule about a whole curve starts from.

In: one curve. Out: at most about a hundred blocks of equal length, each with its median, and how much such a median
varies by chance. Positive curves are read in the logarithm, where a change is a share of the level; a curve that
reaches zero or below in its own spread, so that no rule mistakes the sign of a policy's loss for a change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, Curve, median_deviation

BLOCKS = 100
"""About how many levels a long curve is read as."""
SMALLEST_NOISE = 0.002
"""The least uncertainty of a level that is believed, in nats: rounding in the log makes constant stretches."""
MANY = 40
"""From so many values on, a few spikes do not spoil an estimate of the noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """A curve in blocks."""

    steps: NDArray[np.int64]
    """The first step of each block."""
    x: NDArray[np.float64]
    """The median of each block, on the scale that is judged."""
    noise: float
    """The standard deviation of one block's median around the curve's own course."""
    logarithmic: bool
    """Whether `x` is the logarithm; else values in units of the curve's own spread."""
    size: int
    """How many points make a block."""
    raw_steps: NDArray[np.int64]
    raw_x: NDArray[np.float64]
    """Every finite point, on the same scale."""

    def __len__(self) -> int:
        return len(self.x)


def scaled(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    """Finite values on the scale that is judged, and whether that is the logarithm."""
    lowest = float(values.min())
    if lowest > 0:
        return np.log(values), True
    if lowest == 0 and (values > 0).mean() > 0.5:
        floor = 1e-3 * float(np.median(values[values > 0]))
        return np.log(values + floor), True
    low, high = np.percentile(values, [25, 75])
    spread = float(high - low) / 1.349
    return values / (spread if spread > 0 else 1.0), False


def levels_of(curve: Curve) -> Levels | None:
    """The curve in blocks; None where fewer than two points are finite."""
    finite = curve.finite
    values, steps = curve.values[finite], curve.steps[finite]
    if len(values) < 2:
        return None
    x, logarithmic = scaled(values)
    size = max(1, len(x) // BLOCKS)
    whole = len(x) - len(x) % size
    if size == 1:
        medians, firsts = x, steps
    else:
        tail = [x[whole:]] if len(x) - whole >= (size + 1) // 2 else []
        blocks = np.median(x[:whole].reshape(-1, size), axis=1)
        medians = np.concatenate([blocks, *([np.median(each)] for each in tail)])
        firsts = steps[: (whole if not tail else len(x)) : size]
    return Levels(firsts, medians, noise_of(medians), logarithmic, size, steps, x)


def noise_of(x: NDArray[np.float64]) -> float:
    """How much single values vary around a course that may rise, fall or bend.

    From how far each is off the line between its neighbours. Of few values a single spike spoils that more than it
    spoils plain differences, which a steep course spoils in turn: then the smaller of both.
    """
    if len(x) < 4:
        return float("inf")
    bends = np.abs(x[:-2] - 2 * x[1:-1] + x[2:])
    noise = float(np.median(bends)) / math.sqrt(6)
    if len(x) < MANY:
        differences = np.diff(x)
        noise = min(noise, median_deviation(differences) / math.sqrt(2))
    return max(noise * NORMAL_MAD, SMALLEST_NOISE)


def coarser(levels: Levels, blocks: int) -> tuple[NDArray[np.float64], int]:
    """The levels as so many blocks or fewer, and how many of them make one."""
    size = max(1, len(levels.x) // blocks)
    whole = len(levels.x) - len(levels.x) % size
    return np.median(levels.x[:whole].reshape(-1, size), axis=1), size


def onset(levels: Levels, best: int, limit: float) -> int:
    """The point from which the curve stayed above a limit: where the sum of what it was above and below is least."""
    first = best * levels.size
    above = np.clip(levels.raw_x[first:] - limit, -10 * max(levels.noise, 0.01), 10 * max(levels.noise, 0.01))
    return min(first + int(np.argmin(np.cumsum(above))) + 1, len(levels.raw_x) - 1)
