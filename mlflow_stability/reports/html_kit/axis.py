"""An axis of a picture: where a value stands, and which values are written beside it.

In: the values that are to be seen. Out: places in percent. Guarantees: values that are not finite have no place; a
single value stands in the middle.

Finds round numbers for an axis.

In: its lowest and highest value. Out: the values to write beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.reports.terminal_kit import number_text


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis."""

    at: float
    """Percent from the left, or from the top."""
    label: str


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two numbers, about so many."""
    rough = high / about - low / about
    if not (math.isfinite(rough) and rough > 1e-300):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    return [round(number * gap, 12) if abs(gap) > 1e-9 else number * gap for number in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten within; also their doubles and fives while those are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, (last - first) // 6)
    steps = (1.0, 2.0, 5.0) if last - first <= 2 else (1.0,)
    found = [step * 10.0**power for power in range(first, last + 1, every) if power < 308 for step in steps]
    return [value for value in found if low <= value <= high]


def apart(ticks: Sequence[Tick], characters: float) -> tuple[Tick, ...]:
    """Every tick, or every second, third, ...: as many as have labels that do not touch each other.

    `characters` is how many of them fit side by side along the whole axis.
    """
    for every in range(1, len(ticks)):
        kept = ticks[::every]
        pairs = pairwise(kept)
        if all((b.at - a.at) / 100 * characters > (len(a.label) + len(b.label)) / 2 + 1 for a, b in pairs):
            return tuple(kept)
    return tuple(ticks[:1])


WIDE = 10.0
"""From this ratio of the highest to the lowest value on, an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a picture."""

    low: float
    high: float
    logarithmic: bool = False

    def places(self, values: Iterable[float]) -> NDArray[np.float64]:
        """Percent from the low end; what lies beyond stands at the end."""
        known = np.asarray(list(values), np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Halves, where the whole way from the lowest to the highest is more than a number can say.
            unit = 1.0 if math.isfinite(self.high - self.low) else 0.5
            scaled = np.log(known) if self.logarithmic else known * unit
            low, high = (np.log(each) if self.logarithmic else each * unit for each in (self.low, self.high))
            share = (scaled - low) / (high - low) if high > low else np.full(len(known), 0.5)
        return np.clip(share, 0.0, 1.0) * 100

    def place(self, value: float) -> float:
        """Percent from the low end."""
        return float(self.places([value])[0])

    def ticks(self, about: int = 5) -> tuple[Tick, ...]:
        """Round values with their places."""
        found = decades(self.low, self.high) if self.logarithmic else round_numbers(self.low, self.high, about)
        if len(found) < 2:
            found = sorted({self.low, self.high})
        every = max(1, -(-len(found) // (about + 2)))
        return tuple(Tick(self.place(each), _label(each)) for each in found[::every])


def axis_of(values: Iterable[float], *, logarithmic: bool | None = None) -> Axis:
    """An axis that shows all of the finite ones; logarithmic where they are positive and far apart."""
    known = np.asarray(list(values), np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return Axis(0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    wide = low > 0 and high / WIDE > low
    return Axis(low, high, wide if logarithmic is None else logarithmic and low > 0)


def _label(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e7 else number_text(value)
