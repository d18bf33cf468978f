"""See a level that rises too slowly for any single value to be an outlier.

The mean of the last 32 values, taken every 8, is compared with the lowest such mean of the 512 values before. The rise
is counted in standard errors of a mean. That error comes from how the signal's own means scatter around a straight
line, so that noise that is correlated over many steps is not underestimated.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from statistics import median_high

STRIDE = 8  # number of values in a stretch
STRETCHES_PER_MEAN = 4  # number of stretches in a mean
REFERENCE_MEANS = 64  # number of last means whose lowest is the reference
MEMORY = 512  # number of means from which the error of one is estimated
MIN_MEANS = 40  # number of means before which nothing is judged
MAX_Z, MIN_Z = 4.0, -8.0  # outliers are moved to these: a single value is neither a rise nor a level
CLIFF_MEANS = 8  # number of means, each 8 values after the last, within which a level falls that falls at once
CLIFF_RETURN = 0.25
"""Share of such a fall that may be given back: at the start of an epoch the loss of seen data falls, and then rises."""
LATE_MEANS = 16  # number of last means, 8 values apart, in which a rise that goes on has some of its share
_MAD_TO_SIGMA = 1 / 0.6745


@dataclass(slots=True)
class SlowRise:
    means: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY + 2 * STRETCHES_PER_MEAN))
    stretches: deque[float] = field(default_factory=lambda: deque(maxlen=STRETCHES_PER_MEAN))
    total: float = 0.0
    count: int = 0
    judged: int = 0  # number of means since the start

    def take(self, level: float, z: float, scale: float) -> bool:
        """Add the logarithm of a value; return whether it completes a mean that can be judged."""
        self.total += level - (z - min(max(z, MIN_Z), MAX_Z)) * scale
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
        """Return the rise of the last mean above the lowest; 0 if it is below the means of 32 or 64 values ago."""
        means = self.means
        if not means[-1] > means[-1 - STRETCHES_PER_MEAN] or not means[-1] > means[-1 - 2 * STRETCHES_PER_MEAN]:
            return 0.0
        return self.above_lowest()

    def above_lowest(self) -> float:
        """Return the distance of the last mean from the lowest of the 512 values before."""
        means = self.means
        return means[-1] - min(islice(means, max(0, len(means) - REFERENCE_MEANS), len(means) - STRETCHES_PER_MEAN))

    def late_share(self, rise: float) -> float:
        """Return the share of a rise to the last mean that came in the last 128 values."""
        return min(1.0, (self.means[-1] - self.means[-1 - LATE_MEANS]) / rise)

    def after_cliff(self) -> float:
        """Return the fall of the level within the same 512 values that came at once after a level that held."""
        width, means = CLIFF_MEANS, self.means
        last = list(islice(means, max(0, len(means) - REFERENCE_MEANS - 3 * width), len(means)))
        best = 0.0
        for at in range(2 * width, len(last) - width):
            before, fall = last[at - 2 * width : at], last[at - 1] - last[at + width - 1]
            if fall > best and max(before) - min(before) <= CLIFF_RETURN * fall:
                best = fall
        return best

    def error(self, scale: float) -> tuple[float, float]:
        """Return the standard error of a mean, and its ratio to that of independent noise of this width."""
        means, step = list(self.means), STRETCHES_PER_MEAN
        bends = [abs(means[at] - 2 * means[at - step] + means[at - 2 * step]) for at in range(2 * step, len(means))]
        independent = scale / math.sqrt(STRIDE * step)
        error = max(median_high(bends) * _MAD_TO_SIGMA / math.sqrt(6.0), independent)
        return error, error / independent
