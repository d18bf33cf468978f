"""The window of the classic rules: the plain mean and deviation of the last 100 finite values, outliers and all."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field


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
