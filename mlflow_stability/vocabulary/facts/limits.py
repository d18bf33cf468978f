"""Facts about values that are beyond a threshold, with what the loss did afterwards."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field

from mlflow_stability.vocabulary.facts.facts import Facts

SINCE = "since"
"""Among the metrics of a finding that became worse: the step at which it was found first."""


def times_beyond(value: float, threshold: float) -> float | None:
    """How many times a value is above or below a threshold; None for numbers that say nothing."""
    if not (math.isfinite(value) and value > 0 and threshold > 0):
        return None
    return max(value / threshold, threshold / value)


def rises_beyond(value: float, baseline: float, ratio: float) -> float | None:
    """How many times the rise from a baseline is that of this ratio, both as logarithms."""
    if not (ratio > 1 and baseline > 0 and value > 0):
        return None
    return abs(math.log(value / baseline)) / math.log(ratio)


@dataclass(frozen=True, slots=True)
class LimitFacts(Facts):
    """A value that is beyond a threshold."""

    value: float
    """The value, in the unit of its signal."""
    threshold: float
    """The threshold, in the same unit."""
    _: KW_ONLY
    in_a_row: int = 1
    """Number of such values in a row."""
    place: str = ""
    """The module or layer of the value; empty: the whole model."""

    @property
    def exceeds(self) -> float | None:
        """By how many times the value is above or below the threshold."""
        return times_beyond(self.value, self.threshold)


@dataclass(frozen=True, slots=True)
class RiseFacts(Facts):
    """A value that is a multiple of its baseline."""

    value: float
    """The value, in the unit of its signal."""
    baseline: float
    """The value that is usual, in the same unit."""
    ratio: float
    """The threshold, as a ratio to the baseline."""
    _: KW_ONLY
    place: str = ""
    """The module or layer of the value; empty: the whole model."""

    @property
    def exceeds(self) -> float | None:
        """By how many times the rise is that of the threshold, both as logarithms."""
        return rises_beyond(self.value, self.baseline, self.ratio)


@dataclass(frozen=True, slots=True)
class LossTrouble:
    """What is wrong with a loss: it has risen, or has not fallen."""

    mean: float
    """Running mean of the loss, in its unit."""
    lowest: float | None
    """Its lowest level, in its unit; None where it has not fallen."""
    start: float
    """Its level at the start, in its unit."""

    def __str__(self) -> str:
        """``loss 0.51, 1.4 times its lowest level``."""
        if self.lowest is None:
            return f"loss at {self.mean / self.start:.0%} of its start"
        return f"loss {self.mean:.4g}, {self.mean / self.lowest:.3g} times its lowest level"


@dataclass(frozen=True)
class LastingFacts(Facts):
    """A finding that is reported again, as a warning, where it lasts."""

    __slots__ = ()  # the fields are slots of each subclass, so that one can have fields of another class as well

    found_first: int | None = field(default=None, kw_only=True)
    """The step at which it was found, where it goes on at a later one."""

    @abstractmethod
    def statement(self, step: int, unit: str, /) -> str:
        """What was found, without a full stop."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """What was found, and since when, where it lasts."""
        since = "" if self.found_first is None else f"; so since {unit} {self.found_first}"
        return f"{self.statement(step, unit)}{since}."

    def numbers(self) -> dict[str, float]:
        """The metrics, and the step at which it was found first."""
        values = Facts.numbers(self)
        return values if self.found_first is None else values | {SINCE: float(self.found_first)}


@dataclass(frozen=True)
class FollowedFacts(Facts):
    """A finding after which the loss is followed; a loss that gets worse makes it a warning."""

    __slots__ = ()  # the fields are slots of each subclass, so that one can have fields of another class as well

    found_first: int | None = field(default=None, kw_only=True)
    """The step at which it was found, where it goes on at a later one."""
    loss_since: LossTrouble | None = field(default=None, kw_only=True)
    """What is wrong with the loss since then, where that made it a warning."""

    @abstractmethod
    def statement(self, step: int, unit: str, /) -> str:
        """What was found, without what the loss did afterwards."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """What was found, and what is wrong with the loss since then."""
        if self.loss_since is None or self.found_first is None:
            return self.statement(step, unit)
        return f"{self.statement(self.found_first, unit)} Since then: {self.loss_since}."

    def numbers(self) -> dict[str, float]:
        """The metrics, and the step at which it was found first."""
        found = Facts.numbers(self)
        return found if self.found_first is None else found | {SINCE: float(self.found_first)}
