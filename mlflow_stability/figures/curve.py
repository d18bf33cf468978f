"""Reduce a series for drawing without losing any extreme, at once or while it is measured.

Memory is bounded for any number of points; no extreme and no non-finite value is lost; attempts stay separate while
there are few.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.signal import Series, Signal

MAX_ATTEMPTS = 64  # attempts that are kept apart; the lines of more could not be distinguished
MAX_STRETCHES = 3000
_BUFFERED_POINTS = 1024
_MAX_WIDTH = 1 << 60

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One signal in stretches of steps, in the order of measurement; arrays of equal length."""

    signal: Signal
    steps: Integers  # the first step of each stretch
    low: Floats  # the lowest finite value, or NaN, as in `high` and `mean`
    high: Floats
    mean: Floats
    counts: Integers  # number of finite values
    nonfinite: Integers  # number of other values
    attempts: Integers

    def __len__(self) -> int:
        return len(self.steps)


def curve_of(series: Series) -> Curve:
    return curve_of_values(series.signal, series.steps, series.values, series.attempts)


def curve_of_values(signal: Signal, steps: Integers, values: Floats, attempts: Integers) -> Curve:
    """Return arrays as a curve in stretches of one value each."""
    finite = np.isfinite(values)
    shown = np.where(finite, values, np.nan)
    return Curve(signal, steps, shown, shown, shown, finite.astype(np.int64), (~finite).astype(np.int64), attempts)


def _joined(first: Curve, second: Curve) -> Curve:
    names = ("steps", "low", "high", "mean", "counts", "nonfinite", "attempts")
    arrays = (np.concatenate([getattr(first, name), getattr(second, name)]) for name in names)
    return Curve(first.signal, *arrays)


def condensed(curve: Curve, width: int) -> Curve:
    """Return the curve with all stretches of the same `width` steps merged."""
    if len(curve) < 2 or width <= 1:
        return curve
    place = curve.steps // width
    attempts = curve.attempts
    if attempts.max() - attempts.min() >= MAX_ATTEMPTS:
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
    """Return the curve in at most about `most` stretches."""
    if len(curve) <= most:
        return curve
    span = int(curve.steps.max() - curve.steps.min()) + 1
    return condensed(curve, max(2, -(-span // most)))


class CurveSketch:
    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self._width = 1
        self._curve: Curve | None = None
        self._clear()

    def add(self, step: int, value: float, attempt: int) -> None:
        self._steps.append(step)
        self._values.append(value)
        self._attempts.append(attempt)
        if len(self._steps) >= _BUFFERED_POINTS:
            self._settle()

    def curve(self) -> Curve:
        """Return all points in at most `MAX_STRETCHES` stretches."""
        self._settle()
        assert self._curve is not None
        return self._curve

    def _settle(self) -> None:
        new = curve_of_values(
            self.signal,
            np.array(self._steps, np.int64),
            np.array(self._values, np.float64),
            np.array(self._attempts, np.int64),
        )
        self._clear()
        curve = condensed(new if self._curve is None else _joined(self._curve, new), self._width)
        while len(curve) > MAX_STRETCHES and self._width < _MAX_WIDTH:
            self._width *= 2
            curve = condensed(curve, self._width)
        self._curve = curve

    def _clear(self) -> None:
        self._steps, self._attempts, self._values = array("q"), array("q"), array("d")
