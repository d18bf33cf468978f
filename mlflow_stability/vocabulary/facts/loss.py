"""What findings about losses have in common, for who asks how far a loss rose and where it ended."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.vocabulary.facts.facts import Facts


@dataclass(frozen=True, slots=True)
class LossRiseFacts(Facts):
    """A loss that is above what was normal."""

    value: float
    """The loss, in its unit."""
    baseline: float
    """The loss that was normal before, in its unit."""


@dataclass(frozen=True, slots=True)
class PeakFacts(Facts):
    """The highest value of a rise, as the curve shows it."""

    highest: float
    """In the unit of the metric."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``maximum 9.12``."""
        return f"maximum {self.highest:.4g}"


@dataclass(frozen=True, slots=True)
class LossEndFacts(Facts):
    """A loss whose whole curve shows that it rose and did not come down again."""

    signal: str
    """The loss, by the name that the log gives it."""
    last: float
    """The loss at its end, in its unit."""
    highest: float
    """The highest loss since it rose, in its unit."""
