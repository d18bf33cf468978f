"""Describe a whole loss curve: levels, trend, stability, pattern, shape, health, expected end, and spikes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve
from mlflow_stability.curves.levels import Levels, level_noise, read_levels
from mlflow_stability.vocabulary.result import CurveReading

MIN_LEVELS_TO_FIT = 12  # minimum number of levels to fit a decay
GOOD_FIT = 0.98  # minimum share of the variance that the fit explains
MIN_ASYMPTOTE = 0.5  # an asymptote below this share of the lowest level is not reported
RATES = np.geomspace(0.02, 0.6, 16)  # time constants of exponential decays that are tried, as shares of the run
POWERS = np.linspace(0.2, 1.5, 14)  # exponents of power laws that are tried


def fitted_end(steps: NDArray[np.int64], levels: NDArray[np.float64]) -> float | None:
    """Return the asymptote of the decay that fits a falling curve best; None unless the fit is good."""
    if len(levels) < MIN_LEVELS_TO_FIT or steps[-1] <= steps[0] or not np.isfinite(levels).all():
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
    return end if end is not None and MIN_ASYMPTOTE * lowest <= end <= lowest * 1.02 else None


MIN_POINTS = 8  # minimum number of points to describe a curve
STRONG_FALL, STEADY_FALL, MARGINAL_FALL = 0.20, 0.05, 0.01
"""Minimum relative falls from the first level to the last; a rise by more than the last one is "rising"."""
SMOOTH, NOISY = 0.05, 0.20  # maximum volatility of the last tenth of a smooth curve, and of a noisy one
FIRST_LEVEL_RATIO, LUCKY_DEVIATIONS = 3.0, 4.0
"""The first value is the first level where the level of the first tenth is this multiple of it, or more, by this number
of standard deviations of a point: the curve rose at once."""
MIN_HALF, HALVES_DEVIATIONS = 3, 3.0
"""A stretch is not one level if its halves, of at least this number of points, differ by this number of deviations."""
MEDIAN_DEVIATION = 1.2533  # standard deviation of a median of many normal values, as a multiple of that of their mean
OSCILLATION = 0.05  # minimum relative amplitude of an oscillation
FREQUENCY_SHARE = 0.3  # minimum share of the recent variance in one frequency, for an oscillation instead of noise
MIN_U_RISE = 0.10  # minimum rise of a U-shaped curve after its lowest level, in nats
NOISY_SHARE = 0.05  # a loss that varies by more than this share is noisy
FALL_DEVIATIONS = 2.0
"""Standard errors of a level that a fall of a noisy loss has to exceed: that of the difference of two is 1.8."""
HELD_LEVELS = 5
"""Number of levels whose median is the lowest level of an explosion, so that a single lucky point does not count."""
EXPLODING, CONVERGED = 100.0, 1e-6
"""Loss above which a curve that did not fall is exploding; loss below which it has converged."""
ROLLING_WINDOW, SPIKE_DEVIATIONS = 1000, 7.0
"""Definition of a spike in OLMo 2, section 3.2: distance in deviations from the mean of the values before."""


def is_noisy(reading: CurveReading) -> bool:
    """Whether a loss varies so much that single values say little."""
    return reading.first_level is not None and reading.best > 0 and (reading.volatility or 0.0) > NOISY_SHARE


def is_unmoved(reading: CurveReading) -> bool:
    """Whether a loss is zero from the start, or so noisy that neither a fall nor a plateau can be seen."""
    began, ended = reading.first_level, reading.last_level
    if began is None or ended is None:
        return False
    if began == ended == 0:
        return True
    error = (reading.volatility or 0.0) * began / math.sqrt(max(1, reading.points // 10))  # of the level of a tenth
    return is_noisy(reading) and began - ended <= FALL_DEVIATIONS * error


def read_curve(curve: Curve) -> CurveReading | None:
    """Describe a curve; None where it has no finite value."""
    finite = curve.finite
    values, steps = curve.values[finite], curve.steps[finite]
    if not len(values):
        return None
    best = int(np.argmin(values))
    levels = read_levels(curve)
    described = len(values) >= MIN_POINTS and levels is not None
    start = _start(values, levels)
    end = float(np.median(values[-_level_points(values, levels, at_the_end=True) :]))
    change = (end - start) / abs(start) if described and start else None
    trend = stability = ""
    if change is not None:
        falls = ((STRONG_FALL, "strong"), (STEADY_FALL, "steady"), (MARGINAL_FALL, "marginal"))
        trend = next((word for least, word in falls if change < -least), "flat")
        trend = "rising" if change > MARGINAL_FALL else trend
    volatility = _volatility(values) if described else None
    if volatility is not None:
        stability = "smooth" if volatility <= SMOOTH else "noisy" if volatility <= NOISY else "very noisy"
    health = "ok"
    first_tenth, last_tenth = (float(np.median(part)) for part in _tenths(values))
    if not np.isfinite(curve.values[-1]):
        health = "broken"
    elif last_tenth > EXPLODING and last_tenth >= first_tenth:
        health = "exploding"
    elif 0 <= last_tenth < CONVERGED:
        health = "converged"
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
        stability=stability,
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
    """Return the level of the first tenth, or of the part of it before the curve left that level."""
    first = float(values[0])
    level = float(np.median(values[: _level_points(values, levels)]))
    if levels is None or not levels.logarithmic or not 0 < FIRST_LEVEL_RATIO * first <= level:
        return level
    point_noise = levels.noise * np.sqrt(levels.size)
    return first if np.log(level / first) > LUCKY_DEVIATIONS * point_noise else level  # a lucky value is no level


def _level_points(values: NDArray[np.float64], levels: Levels | None, *, at_the_end: bool = False) -> int:
    """Return the number of points at the first or last level: a tenth, halved while its halves differ."""
    count = len(_tenths(values)[0])
    if levels is None:
        return count
    x = levels.raw_x[::-1] if at_the_end else levels.raw_x
    point_noise = level_noise(x[:count])
    if not np.isfinite(point_noise):
        point_noise = levels.noise * np.sqrt(levels.size)
    while count >= 2 * MIN_HALF:
        half = count // 2
        apart = abs(float(np.median(x[:half]) - np.median(x[half:count])))
        if apart <= HALVES_DEVIATIONS * MEDIAN_DEVIATION * point_noise * np.sqrt(2 / half):
            break
        count = half
    return count


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
        if share > FREQUENCY_SHARE and top >= 3:  # fewer turns are a trend, not an oscillation
            return "oscillating"
    moves, course = np.diff(levels.x), float(levels.x[-1] - levels.x[0])
    if not moves.any():
        return ""
    onward = (moves < levels.noise) if course < 0 else (moves > -levels.noise)
    return "monotone" if course and onward.mean() >= 0.95 else "not monotone"


def _shape(levels: Levels, trend: str, health: str, began: float) -> str:
    x, count = levels.x, len(levels)
    lowest = int(np.argmin(x))
    edge = max(1, count // 10)
    start, end = float(np.median(x[:edge])), float(np.median(x[-edge:]))
    start = min(start, float(np.log(began))) if levels.logarithmic and began > 0 else start
    held = np.median(np.lib.stride_tricks.sliding_window_view(x, min(HELD_LEVELS, count)), axis=1)
    if health == "exploding" or (levels.logarithmic and end - float(held.min()) > np.log(10)):
        return "explosion"
    least = MIN_U_RISE if levels.logarithmic else 3.0
    if count // 10 <= lowest < count - edge and min(start, end) - float(x[lowest]) > max(least, 3 * levels.noise):
        return "u-shape"
    if trend in ("flat", "marginal") and abs(end - start) < max(0.05, 3 * levels.noise):
        return "plateau"
    return "decay" if end < start else ""


def spike_score(values: NDArray[np.float64]) -> float | None:
    """Return the share of values at least 7σ from the mean of the 1000 before them; None for at most 1000 values."""
    if len(values) <= ROLLING_WINDOW:
        return None
    with np.errstate(all="ignore"):
        around = values - float(np.median(values))
        mean = _sums_before(around) / ROLLING_WINDOW
        spread = np.sqrt(np.maximum(_sums_before(around**2) / ROLLING_WINDOW - mean**2, 0.0))
        far = np.abs(around[ROLLING_WINDOW:] - mean) >= SPIKE_DEVIATIONS * spread
    return float((far & (spread > 1e-10)).mean())


def _sums_before(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each value after the first 1000 the sum of the 1000 before it.

    Each is the end of one block of 1000 plus the beginning of the next: differences of cumulative sums over the whole
    curve would lose all precision to a single value of 1e12.
    """
    whole = np.append(values, np.zeros(-len(values) % ROLLING_WINDOW)).reshape(-1, ROLLING_WINDOW)
    ends = np.cumsum(whole[:, ::-1], axis=1)[:-1, ::-1]
    begins = np.zeros_like(ends)
    begins[:, 1:] = np.cumsum(whole[1:, :-1], axis=1)
    return np.asarray((ends + begins).reshape(-1)[: len(values) - ROLLING_WINDOW])
