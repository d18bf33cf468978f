"""Reads a loss curve as a whole, in the words that people use of it.

In: one curve. Out: where it began and ended, its trend, stability, pattern, shape and health, where its decay would
end, and how spiky it was. Guarantees: a word that cannot be told is empty, a number that cannot be told is None.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve
from mlflow_stability.curves.levels import Levels, levels_of, noise_of
from mlflow_stability.vocabulary.result import CurveReading

FEWEST_TO_EXTRAPOLATE = 12
"""Fewer levels are not fitted."""
GOOD_FIT = 0.98
"""The share of the variation that the fit explains at least."""
FURTHEST = 0.5
"""An asymptote below this share of the lowest level is a guess, not a finding."""
RATES = np.geomspace(0.02, 0.6, 16)
"""Time constants that are tried, as shares of the run."""
POWERS = np.linspace(0.2, 1.5, 14)
"""Exponents that are tried."""


def fitted_end(steps: NDArray[np.int64], levels: NDArray[np.float64]) -> float | None:
    """Where a falling curve would end: the asymptote of the decay that fits it best; None unless the fit holds."""
    if len(levels) < FEWEST_TO_EXTRAPOLATE or steps[-1] <= steps[0] or not np.isfinite(levels).all():
        return None
    if np.abs(levels).max() > 1e100:
        return None
    t = (steps - steps[0]) / (steps[-1] - steps[0])
    shapes = [np.exp(-t / rate) for rate in RATES] + [(1 + len(t) * t) ** -power for power in POWERS]
    centered = levels - levels.mean()
    total = float(centered @ centered)
    if total <= 0:
        return None
    best, end = GOOD_FIT, None
    for shape in shapes:
        around = shape - shape.mean()
        slope = float(around @ centered) / float(around @ around)
        explained = 1 - float(((centered - slope * around) ** 2).sum()) / total
        asymptote = float(levels.mean() - slope * shape.mean())
        if slope > 0 and explained > best:
            best, end = explained, asymptote
    lowest = float(np.sort(levels)[: max(1, len(levels) // 10)].mean())
    return end if end is not None and FURTHEST * lowest <= end <= lowest * 1.02 else None


FEWEST = 8
"""A shorter curve is not described."""
STRONG, STEADY, MARGINAL = 0.20, 0.05, 0.01
"""A fall by more than so much from the first level to the last; a rise by more than the last is a rise."""
SMOOTH, NOISY = 0.05, 0.20
"""The volatility of the last tenth up to which a curve is smooth, and up to which it is noisy."""
LEFT_AT_ONCE, LUCKY = 3.0, 4.0
"""A first level at so many times the first value, by so many deviations of a point, was left at once."""
SHORTEST_HALF, SURE = 3, 3.0
"""A beginning of which each half has so many points is no level where its halves are so many deviations apart."""
MEDIAN_DEVIATION = 1.2533
"""The standard deviation of a median of many normal values, as a multiple of that of their mean."""
OSCILLATION = 0.05
"""The least relative amplitude of an oscillation."""
ONE_FREQUENCY = 0.3
"""The share of the recent variation that lies in one frequency, from which on it is an oscillation and no noise."""
BROKEN_U = 0.10
"""How far the end of a U is above its lowest."""
HELD = 5
"""The lowest level counts, for an explosion, as the median of so many: a single lucky point is none."""
EXPLODING, CONVERGED = 100.0, 1e-6
"""Above this a loss that did not fall is exploding; below this it has converged."""
ROLLING, DEVIATIONS = 1000, 7.0
"""OLMo 2, section 3.2: values at least so many deviations from the mean of so many values before."""


def reading_of(curve: Curve) -> CurveReading | None:
    """What the curve shows; None where it has no finite value."""
    finite = curve.finite
    values, steps = curve.values[finite], curve.steps[finite]
    if not len(values):
        return None
    best = int(np.argmin(values))
    levels = levels_of(curve)
    described = len(values) >= FEWEST and levels is not None
    start = _start(values, levels)
    end = _end(values, levels)
    change = (end - start) / abs(start) if described and start else None
    volatility = _volatility(values) if described else None
    trend = _trend(change)
    health = _health(curve, values)
    return CurveReading(
        metric=curve.name,
        place=curve.place,
        points=len(curve.values),
        first_step=int(curve.steps[0]),
        last_step=int(curve.steps[-1]),
        first=float(values[0]),
        last=float(values[-1]),
        best=float(values[best]),
        best_step=int(steps[best]),
        trend=trend,
        change=change,
        stability=_stability(volatility),
        volatility=volatility,
        pattern=_pattern(values, levels) if described and levels is not None else "",
        shape=_shape(levels, trend, health, start) if described and levels is not None else "",
        health=health,
        first_level=start if described else None,
        last_level=end if described else None,
        expected_final=fitted_end(levels.steps, np.exp(levels.x)) if levels and levels.logarithmic else None,
        spike_score=spike_score(values),
    )


def _tenths(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    count = max(2, len(values) // 10)
    return values[:count], values[-count:]


def _start(values: NDArray[np.float64], levels: Levels | None) -> float:
    """The level where the curve began: of its first tenth, or of the part of it before the curve left that level."""
    first = float(values[0])
    level = float(np.median(values[: _level_points(values, levels)]))
    if levels is None or not levels.logarithmic or not 0 < LEFT_AT_ONCE * first <= level:
        return level
    one = levels.noise * np.sqrt(levels.size)  # the noise of a single point: a lucky first value is no level
    return first if np.log(level / first) > LUCKY * one else level


def _end(values: NDArray[np.float64], levels: Levels | None) -> float:
    """The level where the curve ended: of its last tenth, or of the part of it that is at one level."""
    if levels is None:
        return float(np.median(_tenths(values)[1]))
    return float(np.median(values[-_level_points(values, levels, at_the_end=True) :]))


def _level_points(values: NDArray[np.float64], levels: Levels | None, *, at_the_end: bool = False) -> int:
    """How many points are at the level where the curve began, or ended: a tenth, halved while its halves differ."""
    count = len(_tenths(values)[0])
    if levels is None:
        return count
    x = levels.raw_x[::-1] if at_the_end else levels.raw_x
    own = noise_of(x[:count])
    one = own if np.isfinite(own) else levels.noise * np.sqrt(levels.size)
    while count >= 2 * SHORTEST_HALF:
        half = count // 2
        apart = abs(float(np.median(x[:half]) - np.median(x[half:count])))
        if apart <= SURE * MEDIAN_DEVIATION * one * np.sqrt(2 / half):
            break
        count = half
    return count


def _trend(change: float | None) -> str:
    if change is None:
        return ""
    if change > MARGINAL:
        return "rising"
    falls = ((STRONG, "strong"), (STEADY, "steady"), (MARGINAL, "marginal"))
    return next((word for least, word in falls if change < -least), "flat")


def _volatility(values: NDArray[np.float64]) -> float | None:
    _, last = _tenths(values)
    if len(last) < 4:
        last = values[-4:]
    places = np.arange(len(last))
    with np.errstate(all="ignore"):
        line = np.polyval(np.polyfit(places, last, 1), places)
        level = abs(float(np.mean(last)))
        share = float(np.std(last - line)) / level if level else np.inf
    return share if np.isfinite(share) else None


def _stability(volatility: float | None) -> str:
    if volatility is None:
        return ""
    return "smooth" if volatility <= SMOOTH else "noisy" if volatility <= NOISY else "very noisy"


def _pattern(values: NDArray[np.float64], levels: Levels) -> str:
    recent = values[-min(len(values), 512) :]
    places = np.arange(len(recent))
    level = abs(float(np.median(recent)))
    around = recent - np.polyval(np.polyfit(places, recent, min(2, len(recent) - 1)), places)
    power = np.abs(np.fft.rfft(around))[1:] ** 2
    swing = float(np.percentile(around, 90) - np.percentile(around, 10))
    if len(power) >= 16 and power.sum() > 0 and level and swing > OSCILLATION * level:
        top = int(np.argmax(power))
        share = float(power[max(0, top - 1) : top + 2].sum() / power.sum())
        if share > ONE_FREQUENCY and top >= 3:  # fewer turns than that are a course, not an oscillation
            return "oscillating"
    moves, course = np.diff(levels.x), float(levels.x[-1] - levels.x[0])
    if not moves.any():
        return ""  # it did not move
    onward = (moves < levels.noise) if course < 0 else (moves > -levels.noise)
    return "monotone" if course and onward.mean() >= 0.95 else "not monotone"


def _shape(levels: Levels, trend: str, health: str, began: float) -> str:
    x, count = levels.x, len(levels)
    lowest = int(np.argmin(x))
    edge = max(1, count // 10)
    start, end = float(np.median(x[:edge])), float(np.median(x[-edge:]))
    start = min(start, float(np.log(began))) if levels.logarithmic and began > 0 else start
    held = np.median(np.lib.stride_tricks.sliding_window_view(x, min(HELD, count)), axis=1)
    if health == "exploding" or (levels.logarithmic and end - float(held.min()) > np.log(10)):
        return "explosion"
    least = BROKEN_U if levels.logarithmic else 3.0
    if count // 10 <= lowest < count - edge and min(start, end) - float(x[lowest]) > max(least, 3 * levels.noise):
        return "u-shape"
    if trend in ("flat", "marginal") and abs(end - start) < max(0.05, 3 * levels.noise):
        return "plateau"
    return "decay" if end < start else ""


def _health(curve: Curve, values: NDArray[np.float64]) -> str:
    if not np.isfinite(curve.values[-1]):
        return "broken"
    first, last = (float(np.median(part)) for part in _tenths(values))
    if last > EXPLODING and last >= first:
        return "exploding"
    return "converged" if 0 <= last < CONVERGED else "ok"


def spike_score(values: NDArray[np.float64]) -> float | None:
    """The share of values that are seven deviations or more from the mean of the thousand before; None below that."""
    if len(values) <= ROLLING:
        return None
    with np.errstate(all="ignore"):
        around = values - float(np.median(values))
        mean = _sums_before(around) / ROLLING
        spread = np.sqrt(np.maximum(_sums_before(around**2) / ROLLING - mean**2, 0.0))
        far = np.abs(around[ROLLING:] - mean) >= DEVIATIONS * spread
    return float((far & (spread > 1e-10)).mean())


def _sums_before(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each value behind the first thousand the sum of the thousand before it.

    From the end of one block of a thousand and the beginning of the next: a difference of sums over the whole curve
    would forget everything beside a single value of 1e12.
    """
    whole = np.append(values, np.zeros(-len(values) % ROLLING)).reshape(-1, ROLLING)
    ends = np.cumsum(whole[:, ::-1], axis=1)[:-1, ::-1]
    begins = np.zeros_like(ends)
    begins[:, 1:] = np.cumsum(whole[1:, :-1], axis=1)
    return np.asarray((ends + begins).reshape(-1)[: len(values) - ROLLING])
