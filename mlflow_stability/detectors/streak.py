"""Detectors of values that are bad several times in a row, and how such values are counted.

So many bad values in a row are one finding. Of a detector that sees one place it is over with the first good value.
Trouble that many places share is one finding as well, at the place where it was found first: it is over when no place
has it and that place has been well for some values in a row, so that trouble that comes and goes is one finding.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.progress import JudgedByProgress, Progress
from mlflow_stability.vocabulary.facts import Facts, LastingFacts
from mlflow_stability.vocabulary.result.finding import Finding

OVER_AFTER = 10
"""After how many good values in a row at the place where it was found the trouble is over."""


@dataclass(slots=True)
class Streak:
    """How many values in a row have been bad."""

    length: int = 0
    is_found: bool = False
    """Whether that was a finding that is not over."""

    def reaches(self, _place: str, needed: int, *, bad: bool) -> bool:
        """Count one more value; True once, when the streak has reached its length."""
        if not bad:
            self.length, self.is_found = 0, False
            return False
        self.length += 1
        if self.is_found or self.length < needed:
            return False
        self.is_found = True
        return True


@dataclass(slots=True)
class StreakByPlace:
    """How many values in a row have been bad, by place."""

    lengths: dict[str, int] = field(default_factory=dict)
    """Places without any are left out."""
    found_at: str | None = None
    """The place of the finding that is not over."""
    calm: int = 0
    """How many values in a row have been good there since."""

    @property
    def is_found(self) -> bool:
        """Whether there is a finding that is not over."""
        return self.found_at is not None

    def reaches(self, place: str, needed: int, *, bad: bool) -> bool:
        """Count one more value of a place; True once, when the first place has reached the length."""
        if not bad:
            self.lengths.pop(place, 0)
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
    """The same, with the losses of the training."""

    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class StreakDetector(Detector):
    """A detector of values that are bad several times in a row. Its state is a streak of either sort."""

    in_a_row: ClassVar[str] = ""
    """The threshold that says how many bad values in a row are a finding; empty: the first one is."""
    state_type: ClassVar[type[Any]] = Streak

    def takes(self, state: Any, point: Point) -> bool:  # noqa: ARG002 - for those that keep some of the points
        """Take a point in; whether it is a value to be judged, whose baseline is known where that is asked for."""
        return point.finite and (point.scale != 0 or point.quantity not in self.compared)

    @abstractmethod
    def facts(self, state: Any, point: Point) -> Facts | None:
        """What is bad about a value; None for a good one."""

    def needed(self, point: Point) -> int:  # noqa: ARG002 - for those in which it depends on the place
        """How many bad values in a row are a finding."""
        return int(getattr(self, self.in_a_row)) if self.in_a_row else 1

    def look(self, state: Any, point: Point) -> Finding | None:
        """Look at the next point."""
        if not self.takes(state, point):
            return None
        facts = self.facts(state, point)
        reached = state.reaches(point.place, self.needed(point), bad=facts is not None)
        return self.finding(point, self.severities[-1], facts) if reached and facts is not None else None

    def step(self, state: Any, point: Point) -> tuple[Any, Finding | None]:
        """Look at the next point."""
        return state, self.look(state, point)


@dataclass(slots=True)
class LastingStreak(Streak):
    """A streak, and when its finding was made."""

    usual: float = 0.0
    """The level when the finding was made: a baseline takes in what stays low."""
    found_step: int = 0
    found_time: float = 0.0
    is_lasting: bool = False
    """Whether that was reported."""


@dataclass(frozen=True, slots=True)
class LastingStreakDetector(StreakDetector):
    """One whose findings are of its mildest severity at first, and of its highest where they last; its facts are
    `LastingFacts`.
    """

    lasting_steps: int = field(default=100, kw_only=True)
    """For how many more steps a finding lasts that becomes a warning."""
    lasting_seconds: float = field(default=60.0, kw_only=True)
    """For how many seconds as well: 100 steps of a small model take less than one."""

    state_type: ClassVar[type[Any]] = LastingStreak

    def look(self, state: LastingStreak, point: Point) -> Finding | None:
        """Look at the next point."""
        if state.is_found:
            point = point._replace(center=state.usual)
        else:
            state.usual = point.center
        event = StreakDetector.look(self, state, point)
        if event is not None:
            state.found_step, state.found_time, state.is_lasting = point.step, point.time, False
            return replace(event, severity=self.severities[0])
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
    """One whose findings are information while the loss falls; its state is a `StreakWithLoss`, or a subclass."""

    across_places: ClassVar[bool] = True
    state_type: ClassVar[type[Any]] = StreakWithLoss
    takes_losses: ClassVar[bool] = False
    look = StreakDetector.look

    def goes_on(self, state: Any) -> bool:
        """Whether the finding is not over."""
        return bool(state.is_found)
