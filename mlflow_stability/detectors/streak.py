"""Detectors of values that are bad several times in a row.

A streak of bad values is one finding. For one place, it ends with the first good value. For a detector that sees many
places, trouble that they share is one finding too, at the place where it began: it ends when no place is bad and that
place has been good for some values in a row, so that trouble which comes and goes is reported once.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.detectors.progress import JudgedByProgress, Progress
from mlflow_stability.vocabulary.facts import Facts, LastingFacts
from mlflow_stability.vocabulary.judging import CLASSIC
from mlflow_stability.vocabulary.result.finding import Finding

OVER_AFTER = 10  # number of good values in a row, at the place of a finding, that end it


@dataclass(slots=True)
class Streak:
    length: int = 0
    is_found: bool = False  # whether the streak was reported

    def reaches(self, _place: str, needed: int, *, bad: bool) -> bool:
        """Count one more value; return True once, when the streak has this length."""
        if not bad:
            self.length, self.is_found = 0, False
            return False
        self.length += 1
        if self.is_found or self.length < needed:
            return False
        self.is_found = True
        return True


@dataclass(slots=True)
class Once(Streak):
    def reaches(self, _place: str, needed: int, *, bad: bool) -> bool:
        return not self.is_found and Streak.reaches(self, _place, needed, bad=bad)


@dataclass(slots=True)
class StreakByPlace:
    lengths: dict[str, int] = field(default_factory=dict)  # of places whose last value was bad
    found_at: str | None = None  # the place of the finding that is not over
    calm: int = 0  # number of good values in a row at that place

    @property
    def is_found(self) -> bool:
        return self.found_at is not None

    def reaches(self, place: str, needed: int, *, bad: bool) -> bool:
        """Count one more value of a place; return True once, when a first streak has this length."""
        if not bad:
            self.lengths.pop(place, None)
            if place == self.found_at:
                self.calm += 1
                if self.calm >= OVER_AFTER and all(length < needed for length in self.lengths.values()):
                    self.found_at = None
            return False
        self.lengths[place] = length = self.lengths.get(place, 0) + 1
        if place == self.found_at:
            self.calm = 0
        if self.found_at is not None or length < needed:
            return False
        self.found_at, self.calm = place, 0
        return True


@dataclass(slots=True)
class StreakWithLoss(StreakByPlace):
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class StreakDetector(Detector):
    """A detector of values that are bad several times in a row. Its state is a streak."""

    in_a_row: ClassVar[str] = ""  # name of the threshold of their number; empty: the first bad value is a finding
    state_type: ClassVar[type[Any]] = Streak

    def takes(self, state: Any, point: Point) -> bool:  # noqa: ARG002 - for those that keep some of the points
        """Whether to judge a point: its value is finite, and its baseline is known where it is compared with one."""
        return point.finite and (point.scale != 0 or point.quantity not in self.compared)

    @abstractmethod
    def facts(self, state: Any, point: Point) -> Facts | None:
        """Return the facts of a bad value; None for a good one."""

    def needed(self, point: Point) -> int:  # noqa: ARG002 - for those whose number depends on the place
        """Return the number of bad values in a row that are a finding."""
        return int(getattr(self, self.in_a_row)) if self.in_a_row else 1

    def look(self, state: Any, point: Point) -> Finding | None:
        if not self.takes(state, point):
            return None
        facts = self.facts(state, point)
        reached = state.reaches(point.place, self.needed(point), bad=facts is not None)
        return self.finding(point, self.severities[-1], facts) if reached and facts is not None else None

    def step(self, state: Any, point: Point) -> tuple[Any, Finding | None]:
        return state, self.look(state, point)


@dataclass(slots=True)
class LastingStreak(Streak):
    usual: float = 0.0  # the level when the streak was reported: the baseline follows what lasts
    found_step: int = 0
    found_time: float = 0.0
    is_lasting: bool = False  # whether it was reported again as lasting


@dataclass(frozen=True, slots=True)
class LastingStreakDetector(StreakDetector):
    """Reports at its mildest severity first, and at its highest where the streak lasts; facts: `LastingFacts`."""

    lasting_steps: int = field(default=100, kw_only=True)
    """For how many more steps a finding lasts that becomes a warning."""
    lasting_seconds: float = field(default=60.0, kw_only=True)
    """For how many seconds as well: 100 steps of a small model take less than one."""

    state_type: ClassVar[type[Any]] = LastingStreak

    def look(self, state: LastingStreak, point: Point) -> Finding | None:
        if state.is_found:
            point = point._replace(center=state.usual)
        else:
            state.usual = point.center
        finding = StreakDetector.look(self, state, point)
        if finding is not None:
            state.found_step, state.found_time, state.is_lasting = point.step, point.time, False
            return replace(finding, severity=self.severities[0])
        if not state.is_found or state.is_lasting or not self.takes(state, point):
            return None
        steps, seconds = point.step - state.found_step, point.time - state.found_time
        if steps < self.lasting_steps or seconds < self.lasting_seconds:
            return None
        facts = self.facts(state, point)
        if not isinstance(facts, LastingFacts):
            return None
        state.is_lasting = True
        return self.finding(point, self.severities[-1], replace(facts, found_first=state.found_step))


@dataclass(frozen=True, slots=True)
class StreakWithLossDetector(JudgedByProgress, StreakDetector):
    """A streak detector whose findings are INFO while the loss falls; its state is a `StreakWithLoss`."""

    across_places: ClassVar[bool] = True
    state_type: ClassVar[type[Any]] = StreakWithLoss
    takes_losses: ClassVar[bool] = False
    look = StreakDetector.look

    def goes_on(self, state: Any) -> bool:
        return bool(state.is_found)


@dataclass(slots=True)
class ClassicWindow(Streak):
    """The last finite values, with which classic rules compare the next one."""

    values: deque[float] = field(default_factory=deque)

    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    def deviation(self, mean: float) -> float:
        return math.sqrt(sum((value - mean) * (value - mean) for value in self.values) / len(self.values))


@dataclass(frozen=True, slots=True)
class ClassicDetector(StreakDetector):
    """A classic rule: compares a value with the mean and the deviation of the values before it."""

    window: int = field(default=100, kw_only=True)  # number of values in the mean
    least_values: int = field(default=20, kw_only=True)  # minimum number of values before the mean is used

    instability: ClassVar[Instability] = Instability.HARMFUL
    on_request: ClassVar[bool] = True
    rule: ClassVar[str] = CLASSIC
    state_type: ClassVar[type[Any]] = ClassicWindow

    @abstractmethod
    def judge(self, state: ClassicWindow, value: float) -> Facts | None:
        """Return the facts of a value that is too high beside those in the window; None for others."""

    def facts(self, state: ClassicWindow, point: Point) -> Facts | None:
        facts = self.judge(state, point.value)
        state.values.append(point.value)
        if len(state.values) > self.window:
            state.values.popleft()
        return facts
