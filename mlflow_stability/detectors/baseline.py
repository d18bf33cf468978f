"""The normal level and the noise of one signal, and how far a value is above its level in σ.

`z` is the distance above the level in standard deviations of the noise. It is never NaN; a falling signal is never an
outlier; one outlier, or a hundred, does not move the level; a new level is normal after 200 values.

Ratios are compared (the logarithm), because a loss of 4 that becomes 8 and one of 0.4 that becomes 0.8 are the same
trouble. While the baseline holds a value at or below zero (rewards, densities, hinge losses) differences are compared.

The level is the lower of two medians, of the last 256 accepted values and of the last 32: the short one follows a loss
that falls, the long one does not follow a loss that creeps up. The noise is the spread of the values around the level
as it was just before each of them, so that a steady fall does not count as noise.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

WINDOW = 256  # number of accepted values in the baseline
SHORT_WINDOW = 32  # number of last ones that follow a falling signal
MINIMUM = 32  # number of accepted values before the first outlier is possible
OUTLIER_Z = 8.0  # minimum z of an outlier, which is kept out of the baseline; a signal's own heavy tail raises it
OTHER_LEVEL = 4.0  # minimum z of a first loss under another optimizer that has another level: chance 1 in 30,000
FAR_BELOW = math.log(2)  # distance below the level, in nats, of values that are unusual; many soon lower the level
READMIT_AFTER = 200  # number of outliers, less the accepted values in between, after which their level is normal
MIN_WIDTH = 2e-3  # minimum σ of the noise, as a share of the level: rounding is not noise
TAIL = 1e-5  # share of the values of a signal's own noise that are beyond its tail
UNKNOWN_TAIL = 12.0  # minimum tail, in z, before 256 values have been compared
LEARN_FROM = 128  # comparisons before the width is known well enough to learn the tail, and to call values usual
CLUSTER_ENDS = 4
"""Number of values without excess that end a cluster of excesses. The tail is learnt from it only then, so that trouble
which lasts does not count as normal."""
MAX_CLUSTER = 16  # maximum number of excesses of one cluster that are learnt
_TAIL_FROM = 3.0
_TAIL_MEMORY = 20_000
# Prior of the tail: the share above z = 3 of a normal distribution, worth 200 values, but a slope of 0.2, twice as
# heavy, worth 6 excesses.
_PRIOR_VALUES, _PRIOR_SHARE, _PRIOR_EXCESSES, _PRIOR_SLOPE = 200.0, 0.00135, 6.0, 0.2
_FIRST_LEVEL = 8
_QUARTILES_TO_SIGMA = 1 / 1.349
_MAX_Z = 1e6
_MAX_VALUE = 1e150


class Baseline:
    """The baseline of one signal. `take` a value, then read the fields."""

    __slots__ = (
        "_calm",
        "_cluster",
        "_excess_sum",
        "_excesses",
        "_kept_out",
        "_long",
        "_next_tail",
        "_not_positive",
        "_order",
        "_pressure",
        "_residual_order",
        "_residuals",
        "_seen",
        "_short",
        "accepted",
        "center",
        "logarithmic",
        "scale",
        "tail",
        "z",
    )

    def __init__(self) -> None:
        self.z = 0.0
        self.accepted = True
        self.center = self.scale = 0.0
        self.tail = self._next_tail = UNKNOWN_TAIL
        self.logarithmic = True
        self._excesses = self._excess_sum = self._seen = 0.0
        self._cluster: list[float] = []
        self._calm = 0
        self._forget()

    def take(self, value: float) -> None:
        """Judge a finite value against those before it, and accept it unless it is an outlier."""
        if value > 0.0 and self.logarithmic:
            level = math.log(value if value < _MAX_VALUE else _MAX_VALUE)
        else:
            level = self._level_of_differences(value)
        count = len(self._order)
        if count < _FIRST_LEVEL:
            self.z, self.accepted = 0.0, True
            self._admit(level, None)
            return
        long, short = self._long[count >> 1], self._short[len(self._short) >> 1]
        center = long if long < short else short
        residual = level - center
        if count < MINIMUM:
            self.z, self.accepted = 0.0, True
        else:
            self._compare(center, residual)
        if self.accepted:
            if self._pressure:
                self._pressure -= 1
            self._admit(level, residual)
        else:
            self._kept_out.append(level)
            self._pressure += 1
            if self._pressure >= READMIT_AFTER:
                levels = list(self._kept_out)
                self._forget()
                self._admit_all(levels)

    def is_far_above(self, value: float, *, after_outliers: bool = False) -> bool:
        """Return whether a finite value belongs to a higher level, without taking it; after an outlier, if asked."""
        if not (self.accepted or after_outliers) or not self.scale or (self.logarithmic and value <= 0.0):
            return False
        rise = math.log(value / self.center) if self.logarithmic else value - self.center
        return rise >= OTHER_LEVEL * self.scale

    def is_usual(self, value: float, z: float) -> bool:
        """Return whether a value is less than `z` above a well-known level, and not far below it, without taking it.

        A loss that falls without noise is always a little below its level.
        """
        if len(self._residuals) < LEARN_FROM or (self.logarithmic and value <= 0.0):
            return False
        # `center` is that of the value before, which may have moved the level.
        level = min(self._long[len(self._long) >> 1], self._short[len(self._short) >> 1])
        if self.logarithmic:
            return -FAR_BELOW < math.log(value) - level < z * self.scale
        return -OUTLIER_Z * self.scale < value - level < z * self.scale

    def _compare(self, center: float, residual: float) -> None:
        residuals = self._residuals
        count = len(residuals)
        width = (residuals[(3 * count) >> 2] - residuals[count >> 2]) * _QUARTILES_TO_SIGMA
        if self.logarithmic:
            scale = width + MIN_WIDTH
            self.center = math.exp(center)
        else:
            scale = width + MIN_WIDTH * abs(center)
            self.center = center
            if residuals[count >> 2] == residuals[count >> 1]:
                # Often the very same number, as in hinge losses: there is no noise to compare with.
                scale, residual = max(scale, math.ulp(0.0)), 0.0
        self.scale = scale
        z = residual / scale
        self.z = z = z if -_MAX_Z < z < _MAX_Z else math.copysign(_MAX_Z, z)
        self.tail = tail = self._next_tail  # without this value
        self.accepted = z < OUTLIER_Z or z < tail
        self._seen += 1.0
        if z > _TAIL_FROM:
            self._calm = 0
            if self.accepted and self._seen > LEARN_FROM and len(self._cluster) < MAX_CLUSTER:
                self._cluster.append(math.log(z / _TAIL_FROM))
        elif self._cluster:
            self._calm += 1
            if self._calm == CLUSTER_ENDS:
                self._excesses += len(self._cluster)
                self._excess_sum += math.fsum(self._cluster)
                self._cluster.clear()
                self._learn_tail()
        if self._seen == WINDOW:
            self._learn_tail()

    def _learn_tail(self) -> None:
        """Estimate the z that a share of `TAIL` exceeds, by Hill's estimator."""
        if self._seen > _TAIL_MEMORY:
            self._seen, self._excesses, self._excess_sum = self._seen / 2, self._excesses / 2, self._excess_sum / 2
        slope = (self._excess_sum + _PRIOR_EXCESSES * _PRIOR_SLOPE) / (self._excesses + _PRIOR_EXCESSES)
        share = (self._excesses + _PRIOR_VALUES * _PRIOR_SHARE) / (self._seen + _PRIOR_VALUES)
        tail = _TAIL_FROM * (share / TAIL) ** slope
        self._next_tail = tail if self._seen >= WINDOW else max(tail, UNKNOWN_TAIL)

    def _admit(self, level: float, residual: float | None) -> None:
        order, long, short = self._order, self._long, self._short
        if len(order) == WINDOW:
            oldest = order.popleft()
            del long[bisect_left(long, oldest)]
            if not self.logarithmic and oldest <= 0.0:
                self._not_positive -= 1
        order.append(level)
        insort(long, level)
        if len(short) == SHORT_WINDOW:
            del short[bisect_left(short, order[-SHORT_WINDOW - 1])]
        insort(short, level)
        if residual is not None:
            residuals = self._residuals
            if len(residuals) == WINDOW:
                del residuals[bisect_left(residuals, self._residual_order.popleft())]
            self._residual_order.append(residual)
            insort(residuals, residual)
        if level <= 0.0 and not self.logarithmic:
            self._not_positive += 1

    def _level_of_differences(self, value: float) -> float:
        """Return the value itself, or its logarithm once all values of a full window are positive again."""
        if self.logarithmic:
            self._rebuild(logarithmic=False)
        elif value > 0.0 and not self._not_positive and len(self._order) == WINDOW:
            self._rebuild(logarithmic=True)
            return math.log(min(value, _MAX_VALUE))
        return min(max(value, -_MAX_VALUE), _MAX_VALUE)

    def _rebuild(self, *, logarithmic: bool) -> None:
        """Compare ratios instead of differences, or the other way round, with the same values."""
        levels = list(self._order)
        self.logarithmic = logarithmic
        self._forget()
        self._admit_all(list(map(math.log if logarithmic else math.exp, levels)))

    def _admit_all(self, levels: list[float]) -> None:
        for level in levels:
            count = len(self._order)
            if count < _FIRST_LEVEL:
                self._admit(level, None)
            else:
                self._admit(level, level - min(self._long[count >> 1], self._short[len(self._short) >> 1]))

    def _forget(self) -> None:
        self._order: deque[float] = deque()
        self._long: list[float] = []
        self._short: list[float] = []
        self._residual_order: deque[float] = deque()
        self._residuals: list[float] = []
        self._kept_out: deque[float] = deque(maxlen=READMIT_AFTER)
        self._pressure = 0
        self._not_positive = 0
