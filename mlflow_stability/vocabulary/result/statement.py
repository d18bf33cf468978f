"""What a finding says: facts, and the step that they are about; one sentence or two each."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.facts.limits import SINCE


@dataclass(frozen=True, slots=True)
class Text(Facts):
    """A sentence that somebody else wrote: a detector of the user's own, a log, or a recording without facts."""

    text: str
    values: tuple[tuple[str, float], ...] = ()
    """The numbers behind it, by name."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """The text."""
        return self.text

    def numbers(self) -> dict[str, float]:
        """The numbers behind it."""
        return dict(self.values)

    @property
    def found_first(self) -> int | None:
        """The step that a recording without facts names."""
        since = dict(self.values).get(SINCE)
        return None if since is None else int(since)


@dataclass(frozen=True, slots=True)
class Statement:
    """One part of what a finding says."""

    facts: Facts
    step: int
    """The step that the facts are about."""

    def sentence(self, unit: str) -> str:
        """Its sentence, where the log counts in this unit."""
        return self.facts.sentence(self.step, unit)
