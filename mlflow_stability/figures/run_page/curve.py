"""A series reduced for drawing without losing any extreme, at once or while it is measured.

In: points, in order. Out: at most `MOST_STRETCHES` stretches, each with lowest, highest and mean value and its
non-finite count. Guarantees: memory is bounded for any number of points; no extreme and no non-finite value is lost;
attempts stay separate while there are few.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured import Series, Signal

MOST_ATTEMPTS = 64
"""How many attempts are kept apart; beyond that nobody could tell their lines from each other."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One signal in stretches, in the order in which they were measured; arrays of equal length."""

    signal: Signal
    steps: Integers
    """The first step of each stretch."""
    low: Floats
    """The lowest finite value; NaN where there is none, as in `high` and `mean`."""
    high: Floats
    mean: Floats
    counts: Integers
    """How many values were finite."""
    nonfinite: Integers
    """How many were not."""
    attempts: Integers

    def __len__(self) -> int:
        return len(self.steps)


def curve_of(series: Series) -> Curve:
    """A series in stretches of one value each."""
    return curve_of_values(series.signal, series.steps, series.values, series.attempts)


def curve_of_values(signal: Signal, steps: Integers, values: Floats, attempts: Integers) -> Curve:
    """The same of bare arrays."""
    finite = np.isfinite(values)
    shown = np.where(finite, values, np.nan)
    return Curve(signal, steps, shown, shown, shown, finite.astype(np.int64), (~finite).astype(np.int64), attempts)


def joined(curves: list[Curve]) -> Curve:
    """Curves of one signal, one behind the other."""
    if len(curves) == 1:
        return curves[0]
    names = ("steps", "low", "high", "mean", "counts", "nonfinite", "attempts")
    return Curve(curves[0].signal, *(np.concatenate([getattr(each, name) for each in curves]) for name in names))


def condensed(curve: Curve, width: int) -> Curve:
    """The curve with all that falls into the same `width` steps put together."""
    if len(curve) < 2 or width <= 1:
        return curve
    place = curve.steps // width
    attempts = curve.attempts
    if attempts.max() - attempts.min() >= MOST_ATTEMPTS:
        attempts = np.zeros_like(attempts)
    starts = np.flatnonzero(np.r_[True, (np.diff(place) != 0) | (np.diff(attempts) != 0)])
    counts = np.add.reduceat(curve.counts, starts)
    with np.errstate(over="ignore", invalid="ignore"):
        shares = curve.counts / np.repeat(np.maximum(counts, 1), np.diff(np.r_[starts, len(curve)]))
        mean = np.add.reduceat(np.where(curve.counts > 0, curve.mean * shares, 0.0), starts)
    return Curve(
        curve.signal,
        curve.steps[starts],
        np.fmin.reduceat(curve.low, starts),
        np.fmax.reduceat(curve.high, starts),
        np.where(counts > 0, mean, np.nan),
        counts,
        np.add.reduceat(curve.nonfinite, starts),
        attempts[starts],
    )


def fitted(curve: Curve, most: int) -> Curve:
    """The curve in at most about so many stretches."""
    if len(curve) <= most:
        return curve
    span = int(curve.steps.max() - curve.steps.min()) + 1
    return condensed(curve, max(2, -(-span // most)))


MOST_STRETCHES = 3000
_AT_ONCE = 1024
_WIDEST = 1 << 60


class CurveSketch:
    """One signal as far as it has come."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self._width = 1
        self._known: Curve | None = None
        self._clear()

    def add(self, step: int, value: float, attempt: int) -> None:
        """Take a point in."""
        self._steps.append(step)
        self._values.append(value)
        self._attempts.append(attempt)
        if len(self._steps) >= _AT_ONCE:
            self._settle()

    def curve(self) -> Curve:
        """What is known so far."""
        self._settle()
        assert self._known is not None
        return self._known

    def _settle(self) -> None:
        new = curve_of_values(
            self.signal,
            np.array(self._steps, np.int64),
            np.array(self._values, np.float64),
            np.array(self._attempts, np.int64),
        )
        self._clear()
        curve = condensed(joined([new] if self._known is None else [self._known, new]), self._width)
        while len(curve) > MOST_STRETCHES and self._width < _WIDEST:
            self._width *= 2
            curve = condensed(curve, self._width)
        self._known = curve

    def _clear(self) -> None:
        self._steps, self._attempts, self._values = array("q"), array("q"), array("d")
