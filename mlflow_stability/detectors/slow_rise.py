"""Sees a level that creeps up, too slowly for any single value to stand out.

A cumulative sum over short stretches: the mean of the last 32 values, taken every 8, against the lowest such mean of
the 512 values before. The rise is counted in errors of such a mean, which the signal itself shows in how its means
scatter around a straight line, so that noise that hangs together over many steps counts for what it is.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

STRIDE = 8
"""How many values make one short stretch."""
STRETCHES_PER_MEAN = 4
"""How many of them make a mean."""
REFERENCE = 64
"""Among how many means the lowest is looked for."""
MEMORY = 512
"""How many means tell the error of one."""
MIN_MEANS = 40
"""From how many means on anything is judged."""
HIGHEST_Z = 4.0
"""What stands out more counts as this: single outliers are no rise."""
LOWEST_Z = -8.0
"""What lies lower counts as this: single low values are no level to rise from."""
_MAD_TO_SIGMA = 1 / 0.6745


@dataclass(slots=True)
class SlowRise:
    """The means so far, and how far the newest lies above the lowest."""

    means: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY + 2 * STRETCHES_PER_MEAN))
    stretches: deque[float] = field(default_factory=lambda: deque(maxlen=STRETCHES_PER_MEAN))
    total: float = 0.0
    count: int = 0
    judged: int = 0
    """How many means have been judged."""

    def take(self, level: float, z: float, scale: float) -> bool:
        """Take a value in, as its logarithm; True when a new mean is there to be judged."""
        if z > HIGHEST_Z:
            level -= (z - HIGHEST_Z) * scale
        elif z < LOWEST_Z:
            level -= (z - LOWEST_Z) * scale
        self.total += level
        self.count += 1
        if self.count < STRIDE:
            return False
        self.stretches.append(self.total / STRIDE)
        self.total, self.count = 0.0, 0
        if len(self.stretches) < STRETCHES_PER_MEAN:
            return False
        self.means.append(math.fsum(self.stretches) / STRETCHES_PER_MEAN)
        self.judged += 1
        return len(self.means) >= MIN_MEANS

    def rise(self) -> float:
        """How far the newest mean lies above the lowest one, if it lies above those 32 and 64 values ago."""
        means = self.means
        if not means[-1] > means[-1 - STRETCHES_PER_MEAN] or not means[-1] > means[-1 - 2 * STRETCHES_PER_MEAN]:
            return 0.0
        return self.above_lowest()

    def above_lowest(self) -> float:
        """How far the newest mean lies above the lowest of the 512 values before."""
        means = self.means
        return means[-1] - min(islice(means, max(0, len(means) - REFERENCE), len(means) - STRETCHES_PER_MEAN))

    def error(self, scale: float) -> tuple[float, float]:
        """The error of one mean, and how many times larger it is than independent noise of this width would make it."""
        means, step = list(self.means), STRETCHES_PER_MEAN
        bends = sorted(
            abs(means[at] - 2 * means[at - step] + means[at - 2 * step]) for at in range(2 * step, len(means))
        )
        independent = scale / math.sqrt(STRIDE * STRETCHES_PER_MEAN)
        error = max(bends[len(bends) // 2] * _MAD_TO_SIGMA / math.sqrt(6.0), independent)
        return error, error / independent
