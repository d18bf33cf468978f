"""What comes of an outlier: nothing, or something that is worth a person's attention.

In: the values after an outlier, and the steps of outliers. Out: how many are high as well, where they
lie, and whether such values come back. A detector decides by these whether its finding is a warning.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from mlflow_stability.detectors.detector import Point


@dataclass(slots=True)
class Watch:
    """The values after an outlier."""

    step: int
    """The step of the value that was an outlier."""
    high: int = 1
    """How many values are high, the first one included."""
    points: list[tuple[float, float, float]] = field(default_factory=list)
    """Value, baseline and σ of each value after it."""

    @property
    def steps(self) -> int:
        """How many values came after it."""
        return len(self.points)

    def take(self, point: Point, *, high: bool) -> None:
        """Take the next value in."""
        self.high += high
        self.points.append((point.value, point.center, point.z))

    def medians(self) -> tuple[float, float, float]:
        """The median value, baseline and σ of the values after it."""
        values, levels, sigmas = zip(*self.points, strict=True)
        return median(values), median(levels), median(sigmas)


class Row(NamedTuple):
    """Outliers that come often."""

    number: int
    """How many."""
    since: int
    """The step of the first one."""


@dataclass(slots=True)
class Returns:
    """The steps at which values were outliers lately."""

    steps: deque[int] = field(default_factory=deque)

    def take(self, step: int, needed: int, within: int) -> Row | None:
        """Take one more in; the row that it ends where so many came within so many steps."""
        self.steps.append(step)
        while self.steps[0] < step - within:
            self.steps.popleft()
        count = len(self.steps)
        return Row(count, self.steps[0]) if count >= needed else None
