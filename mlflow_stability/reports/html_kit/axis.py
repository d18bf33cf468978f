"""Axes of pictures: places of values in percent, and the values written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.text.phrases import number_text

WIDTH, HEIGHT = 1000, 300  # units of a drawing, which a page stretches
MIN_LOG_RATIO = 10.0  # from this ratio of the highest to the lowest value on, an axis is logarithmic


@dataclass(frozen=True, slots=True)
class Tick:
    at: float  # percent from the left, or from the top
    label: str


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """Return about this many multiples of 1, 2 or 5 times a power of ten between two numbers."""
    rough = high / about - low / about
    if not (math.isfinite(rough) and rough > 1e-300):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    return [round(number * gap, 12) if abs(gap) > 1e-9 else number * gap for number in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Return powers of ten between two numbers; also their doubles and fives while those are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, (last - first) // 6)
    factors = (1.0, 2.0, 5.0) if last - first <= 2 else (1.0,)
    values = [factor * 10.0**power for power in range(first, last + 1, every) if power < 308 for factor in factors]
    return [value for value in values if low <= value <= high]


@dataclass(frozen=True, slots=True)
class Axis:
    low: float
    high: float
    logarithmic: bool = False

    def places(self, values: Iterable[float]) -> NDArray[np.float64]:
        """Return percent from the low end; values beyond an end are at that end, a single value is in the middle."""
        numbers = np.asarray(list(values), np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Halve values where the difference of the ends overflows.
            unit = 1.0 if math.isfinite(self.high - self.low) else 0.5
            scaled = np.log(numbers) if self.logarithmic else numbers * unit
            low, high = (np.log(end) if self.logarithmic else end * unit for end in (self.low, self.high))
            share = (scaled - low) / (high - low) if high > low else np.full(len(numbers), 0.5)
        return np.clip(share, 0.0, 1.0) * 100

    def place(self, value: float) -> float:
        return float(self.places([value])[0])

    def ticks(self, about: int = 5) -> tuple[Tick, ...]:
        values = decades(self.low, self.high) if self.logarithmic else round_numbers(self.low, self.high, about)
        if len(values) < 2:
            values = sorted({self.low, self.high})
        every = max(1, -(-len(values) // (about + 2)))
        return tuple(Tick(self.place(value), _label(value)) for value in values[::every])


def axis_of(values: Iterable[float]) -> Axis:
    """Return an axis that shows all finite values; logarithmic where they are positive and far apart."""
    numbers = np.asarray(list(values), np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return Axis(0.0, 1.0)
    low, high = float(numbers.min()), float(numbers.max())
    return Axis(low, high, low > 0 and high / MIN_LOG_RATIO > low)


def _label(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e7 else number_text(value)
