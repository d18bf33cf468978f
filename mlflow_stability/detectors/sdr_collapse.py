"""Says when different inputs get the same sparse code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.code_reading import QUANTITIES, CodeReading
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.detectors.whole_model import ALL
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(slots=True)
class Patterns:
    """What has been seen so far of one module."""

    reading: CodeReading = field(default_factory=CodeReading)
    streak: Streak = field(default_factory=Streak)


@dataclass(frozen=True, slots=True)
class SdrCollapse:
    """Different inputs get the same sparse code.

    What it sees: a module with sparse binary codes (at least 64 bits of which less than a quarter are on) whose codes
    have fewer than 30 % unique patterns, in 2 measurements in a row. They are counted against the inputs of the batch
    that differ, where those can be seen, for equal inputs may have equal codes; fewer than 32 are not judged. One
    finding until there are more.

    Why it matters: inputs that have one code cannot be told apart by anything behind it.

    What to try: raise the temperature two or three times; add a loss that tells tokens apart; use more bits.

    When it is wrong: inputs that differ in noise alone; codes that are meant to be few, as those of a codebook. It
    spoke in none of 12 healthy trainings of 4 kinds with sparse codes (138 measurements every 100 steps, 1,380 every
    10).

    Reference: Ahmad and Hawkins, Properties of sparse distributed representations (arXiv:1503.07469)
    """

    unique: float = 0.3
    """The share of unique patterns below which it is a collapse."""
    rounds: int = 2
    """In how many measurements in a row."""
    fewest: int = 32
    """Of how many different inputs at least."""

    kind: ClassVar[str] = "sdr_collapse"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = QUANTITIES
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    places: ClassVar[str] = ALL
    severities: ClassVar[tuple[Severity, ...]] = (Severity.CRITICAL,)
    experimental: ClassVar[bool] = False
    remedies: ClassVar[tuple[str, ...]] = (
        "Raise the temperature two or three times.",
        "Add a loss that tells tokens apart.",
        "Use more bits.",
    )

    def begin(self) -> Patterns:
        """Start afresh, knowing nothing."""
        return Patterns()

    def step(self, state: Patterns, point: Point) -> tuple[Patterns, Event | None]:
        """Look at the next number of a module's codes; they are judged when the unique patterns are known."""
        reading = state.reading
        reading.take(point)
        if point.quantity != QUANTITIES[-1] or not point.finite or reading.different_inputs < self.fewest:
            return state, None
        share = reading.unique_share
        if not state.streak.reaches(self.rounds, bad=share < self.unique):
            return state, None
        where = f" of {point.place}" if point.place else ""
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"Only {share:.1%} unique patterns{where} at step {point.step}: {reading.codes} for "
            f"{reading.different_inputs:,.0f} different inputs. {reading.active_bits}",
            {
                "sdr_unique_ratio": share,
                "limit": self.unique,
                "active_bits": reading.values.get("sdr_active_bits", 0.0),
            },
        )
