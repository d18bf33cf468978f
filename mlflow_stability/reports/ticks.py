"""Finds round numbers for an axis.

In: its lowest and highest value. Out: the values to write beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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
