"""What is normal for one signal: its level, the width of its noise, and how far a value stands out from both.

In: the finite values of a signal, one after the other. Out, for each: `z`, how far it lies above the level in widths of
the noise, and whether it was accepted, that is, went into the baseline itself. Guarantees: z is never NaN; a falling
signal never stands out; one outlier, or a hundred, does not move the level; a new level is normal after 200 values.

Ratios are compared (the logarithm), because a loss of 4 that becomes 8 and one of 0.4 that becomes 0.8 are the same
trouble. While the baseline holds a value at or below zero (rewards, densities, hinge losses) differences are compared.

The level is the lower one of two medians, of the last 256 accepted values and of the last 32: the short one follows a
loss that falls, the long one does not follow a loss that creeps up. The noise is the spread of the values around the
level as it was just before each of them, so that a steady fall does not count as noise.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

WINDOW = 256
"""How many accepted values make the baseline."""
SHORT = 32
"""How many of them follow a falling signal."""
MINIMUM = 32
"""From how many accepted values on anything is judged."""
STANDS_OUT = 8.0
"""The least z that keeps a value out of the baseline; a signal's own heavy tail raises it."""
FAR = 4.0
"""The least z of the first loss under another optimizer that shows another level: one value in 30,000 of normal noise.
"""
FAR_BELOW = math.log(2)
"""How far below its level a value is not usual any more, in nats: values like it soon lower the level."""
READMIT_AFTER = 200
"""After how many values kept out (less those accepted in between) the new level is taken as normal."""
SMALLEST_SHARE = 2e-3
"""The least width of noise, as a share of the level: rounding is no noise."""
TAIL = 1e-5
"""How rare a z must be in the signal's own noise to be beyond its tail."""
UNKNOWN_TAIL = 12.0
"""Beyond which z the noise is taken to end while fewer than 256 values have been compared."""
LEARN_FROM = 128
"""After how many comparisons the width is known well enough for the tail to be learnt from it, and for values to be
called usual."""
CLUSTER_ENDS = 4
"""After how many values that are no excess a cluster of excesses is over; only then the tail is learnt from it, so that
trouble which lasts does not teach us that it is usual."""
LONGEST_CLUSTER = 16
"""How many excesses of one cluster are learnt at most."""
_TAIL_FROM = 3.0
_TAIL_MEMORY = 20_000
# Until the signal has shown its own tail: a share above z = 3 as in a normal distribution, worth 200 values, but a tail
# twice as heavy (a slope of 0.2), worth 6 excesses.
_PRIOR_VALUES, _PRIOR_SHARE, _PRIOR_EXCESSES, _PRIOR_SLOPE = 200.0, 0.00135, 6.0, 0.2
_FIRST_LEVEL = 8
_QUARTILES_TO_SIGMA = 1 / 1.349
_FURTHEST = 1e6
_LARGEST = 1e150


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
        """Judge a finite value against those before it, and accept it unless it stands out."""
        if value > 0.0 and self.logarithmic:
            level = math.log(value if value < _LARGEST else _LARGEST)
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
            self._keep_out(level)

    def is_far_above(self, value: float) -> bool:
        """Whether a finite value lies as far above the level as no value of it should; nothing is taken in."""
        if not self.accepted or not self.scale or (self.logarithmic and value <= 0.0):
            return False
        rise = math.log(value / self.center) if self.logarithmic else value - self.center
        return rise >= FAR * self.scale

    def is_usual(self, value: float, z: float) -> bool:
        """Whether a value is less than `z` above a level and noise that are well known, and not far below it.

        Nothing is taken in. A loss that falls without noise is always a little below its level.
        """
        if len(self._residuals) < LEARN_FROM or (self.logarithmic and value <= 0.0):
            return False
        # `center` is that of the value before, which may have moved the level.
        level = min(self._long[len(self._long) >> 1], self._short[len(self._short) >> 1])
        if self.logarithmic:
            return -FAR_BELOW < math.log(value) - level < z * self.scale
        return -STANDS_OUT * self.scale < value - level < z * self.scale

    def _compare(self, center: float, residual: float) -> None:
        residuals = self._residuals
        count = len(residuals)
        width = (residuals[(3 * count) >> 2] - residuals[count >> 2]) * _QUARTILES_TO_SIGMA
        if self.logarithmic:
            scale = width + SMALLEST_SHARE
            self.center = math.exp(center)
        else:
            scale = width + SMALLEST_SHARE * abs(center)
            self.center = center
            if residuals[count >> 2] == residuals[count >> 1]:
                # Often the very same number, as hinge losses are: there is no noise to compare with.
                scale, residual = max(scale, math.ulp(0.0)), 0.0
        self.scale = scale
        z = residual / scale
        self.z = z = z if -_FURTHEST < z < _FURTHEST else math.copysign(_FURTHEST, z)
        self.tail = tail = self._next_tail  # what was known before this value
        self.accepted = z < STANDS_OUT or z < tail
        self._seen += 1.0
        if z > _TAIL_FROM:
            self._calm = 0
            if self.accepted and self._seen > LEARN_FROM and len(self._cluster) < LONGEST_CLUSTER:
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
        """Hill's estimate: how fast the noise gets rarer as z grows, and so where it becomes as rare as `TAIL`."""
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
        if len(short) == SHORT:
            del short[bisect_left(short, order[-SHORT - 1])]
        insort(short, level)
        if residual is not None:
            residuals = self._residuals
            if len(residuals) == WINDOW:
                del residuals[bisect_left(residuals, self._residual_order.popleft())]
            self._residual_order.append(residual)
            insort(residuals, residual)
        if level <= 0.0 and not self.logarithmic:
            self._not_positive += 1

    def _keep_out(self, level: float) -> None:
        self._kept_out.append(level)
        self._pressure += 1
        if self._pressure >= READMIT_AFTER:
            news = list(self._kept_out)
            self._forget()
            self._admit_all(news)

    def _level_of_differences(self, value: float) -> float:
        """Where the logarithm does not do: the value itself; back to the logarithm once all values are positive."""
        if self.logarithmic:
            self._retake(logarithmic=False)
        elif value > 0.0 and not self._not_positive and len(self._order) == WINDOW:
            self._retake(logarithmic=True)
            return math.log(min(value, _LARGEST))
        return min(max(value, -_LARGEST), _LARGEST)

    def _retake(self, *, logarithmic: bool) -> None:
        """Go on comparing in the other way, with the same values."""
        levels = list(self._order)
        values = [math.exp(each) for each in levels] if self.logarithmic else levels
        self.logarithmic = logarithmic
        self._forget()
        self._admit_all([math.log(each) for each in values] if logarithmic else values)

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


@dataclass(slots=True)
class ClassicWindow:
    """The last finite values, and what a rule says of the newest against those before it."""

    values: deque[float] = field(default_factory=deque)
    run: int = 0
    """For how many values in a row the rule has held."""

    def mean(self) -> float:
        """Their mean."""
        return sum(self.values) / len(self.values)

    def deviation(self, mean: float) -> float:
        """Their standard deviation around it."""
        return math.sqrt(sum((each - mean) * (each - mean) for each in self.values) / len(self.values))

    def take(self, value: float, window: int) -> None:
        """Let the newest value in, whatever it is."""
        self.values.append(value)
        while len(self.values) > window:
            self.values.popleft()
