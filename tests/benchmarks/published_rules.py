"""Rules that others use to find a bad value, exactly as published, so that ours can be put beside them.

Each takes the values of a signal one by one and says whether the newest is bad.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol


class Rule(Protocol):
    def bad(self, value: float) -> bool: ...


class Moments:
    """Mean and deviation of the last values, kept as sums."""

    def __init__(self, window: int) -> None:
        self.values: deque[float] = deque(maxlen=window)
        self.total = self.squares = 0.0

    def add(self, value: float) -> None:
        if len(self.values) == self.values.maxlen:
            self.total -= self.values[0]
            self.squares -= self.values[0] ** 2
        self.values.append(value)
        self.total += value
        self.squares += value**2

    @property
    def mean(self) -> float:
        return self.total / len(self.values)

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self.squares / len(self.values) - self.mean**2, 0.0))


class Sigmas:
    """Above the mean of the window by so many deviations; bad values enter the window too."""

    def __init__(self, sigmas: float, window: int, least: int) -> None:
        self.sigmas, self.least, self.seen = sigmas, least, Moments(window)

    def bad(self, value: float) -> bool:
        seen = self.seen
        found = len(seen.values) >= self.least and value - seen.mean > self.sigmas * seen.deviation
        seen.add(value)
        return found


class TimesMean:
    """llm-foundry's KillLossSpike: at least twice the mean of the window; bad values enter it."""

    def __init__(self, times: float = 2.0, window: int = 100) -> None:
        self.times, self.window, self.seen = times, window, Moments(window)

    def bad(self, value: float) -> bool:
        seen = self.seen
        found = len(seen.values) == self.window and value >= self.times * seen.mean
        seen.add(value)
        return found


class TimesFirstMax:
    """Megatron-LM's spiky loss: ten times the largest of the first 100."""

    def __init__(self, times: float = 10.0, first: int = 100) -> None:
        self.times, self.left, self.largest = times, first, 0.0

    def bad(self, value: float) -> bool:
        if self.left:
            self.left -= 1
            self.largest = max(self.largest, abs(value))
            return False
        return value >= self.times * self.largest


class Lightning:
    """Lightning's SpikeDetection: worse than the last one accepted, and off the running mean by twice that mean."""

    def __init__(self, window: int = 10, rtol: float = 2.0) -> None:
        self.rtol, self.seen, self.last = rtol, Moments(window), math.inf

    def bad(self, value: float) -> bool:
        seen = self.seen
        if seen.values and value > self.last and abs(value - seen.mean) >= self.rtol * abs(seen.mean):
            return True
        seen.add(value)
        self.last = value
        return False


class ZClip:
    """ZClip: z above 2.5 of moving averages that are fed with the clipped value."""

    def __init__(self, alpha: float = 0.97, z: float = 2.5, warm_up: int = 25) -> None:
        self.alpha, self.z, self.warm_up = alpha, z, warm_up
        self.first: list[float] = []
        self.mean = self.variance = 0.0

    def bad(self, value: float) -> bool:
        if len(self.first) < self.warm_up:
            self.first.append(value)
            self.mean = sum(self.first) / len(self.first)
            self.variance = sum((each - self.mean) ** 2 for each in self.first) / len(self.first)
            return False
        deviation = math.sqrt(self.variance) + 1e-6
        z = (value - self.mean) / deviation
        found = z > self.z
        kept = self.mean + self.z**2 / z * deviation if found else value
        self.mean = self.alpha * self.mean + (1 - self.alpha) * kept
        self.variance = self.alpha * self.variance + (1 - self.alpha) * (kept - self.mean) ** 2
        return found


def published() -> dict[str, Rule]:
    """All of them, fresh."""
    return {
        "OLMo-core 6 sigma of 128": Sigmas(6.0, 128, 64),
        "OLMo 2 7 sigma of 1000": Sigmas(7.0, 1000, 1000),
        "llm-foundry 2x mean of 100": TimesMean(),
        "Megatron 10x max of first 100": TimesFirstMax(),
        "Lightning rtol 2 of 10": Lightning(),
        "ZClip z 2.5": ZClip(),
    }
