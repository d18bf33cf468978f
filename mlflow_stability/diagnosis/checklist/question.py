"""What one question of a checklist is made of, and how it is answered.

In: a question and a run. Out: an answer of the first source that has data. Guarantees: where no source has data, the
answer is unknown and says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity

State = Literal["ok", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question."""

    text: str
    state: State
    has_data: bool = True
    """Whether the run holds anything about it: if not, the next source is asked."""


@dataclass(frozen=True, slots=True)
class Case:
    """What the questions are about."""

    around: EpisodeContext
    diagnosis: Diagnosis

    @property
    def has_finding(self) -> bool:
        """Whether it is about a finding, and not about a run without one."""
        return bool(self.around.episode.kind)

    def findings(self, *kinds: str, least: Severity = Severity.INFO) -> list[Finding]:
        """The findings of these kinds that are at least so severe, in order of time."""
        return [each for each in self.diagnosis.findings if each.kind in kinds and each.severity >= least]


Source = Callable[[Case], Answer | None]
"""Looks for the answer in one place: a finding, a curve, a setting, an event; None: it has nothing to say."""


def no_data(missing: str) -> Answer:
    """The answer of a source whose data are missing."""
    return Answer(f"No data: {missing}.", "unknown", has_data=False)


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to check."""

    text: str
    sources: tuple[Source, ...] = ()
    """Where to look for the answer, in this order; empty: a run does not show it."""
    check_by_hand: str = ""

    def by_hand(self, check: str) -> Question:
        """The same question, with how to check it by hand."""
        return replace(self, check_by_hand=check)

    def answer(self, case: Case) -> Answer:
        """What a run shows of it."""
        answers = [answer for source in self.sources if (answer := source(case)) is not None]
        missing = answers[0] if answers else no_data("a run does not show this")
        return next((answer for answer in answers if answer.has_data), missing)


def ask(text: str, *sources: Source) -> Question:
    """A question, and where to look for its answer."""
    return Question(text, sources)
