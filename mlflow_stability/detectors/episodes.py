"""Follow one episode of trouble: report it once, and see whether it lasts or comes back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from mlflow_stability.detectors.detector import Point
from mlflow_stability.vocabulary.result.finding import Severity


@dataclass(slots=True)
class EpisodeFilter:
    """Lets a detector report an episode once, and once more if it becomes more severe."""

    reported: int = 0  # the severity that was reported; 0 outside of an episode
    calm: int = 0  # number of normal values in a row

    def report(self, severity: Severity) -> bool:
        """Note a bad value; return whether its severity has not been reported yet."""
        self.calm = 0
        if severity <= self.reported:
            return False
        self.reported = severity
        return True

    def note_calm(self, over_after: int) -> None:
        """Note a normal value; `over_after` of them in a row end the episode."""
        self.calm += 1
        if self.calm >= over_after:
            self.reported = 0


@dataclass(slots=True)
class Aftermath:
    step: int  # the step of the outlier
    high: int = 1  # number of high values, the outlier included
    points: list[tuple[float, float, float]] = field(default_factory=list)  # value, baseline and σ of each later value

    @property
    def steps(self) -> int:
        return len(self.points)

    def take(self, point: Point, *, high: bool) -> None:
        self.high += high
        self.points.append((point.value, point.center, point.z))

    def medians(self) -> tuple[float, float, float]:
        values, levels, sigmas = zip(*self.points, strict=True)
        return median(values), median(levels), median(sigmas)


class OutlierSeries(NamedTuple):
    number: int
    since: int  # the step of the first one


@dataclass(slots=True)
class RecentOutliers:
    steps: deque[int] = field(default_factory=deque)

    def take(self, step: int, needed: int, within: int) -> OutlierSeries | None:
        """Add an outlier; return the series where the last `within` steps have at least `needed` of them."""
        self.steps.append(step)
        while self.steps[0] < step - within:
            self.steps.popleft()
        count = len(self.steps)
        return OutlierSeries(count, self.steps[0]) if count >= needed else None
