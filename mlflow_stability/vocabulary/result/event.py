"""What a detector says when it has seen something."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.result.remedy import Remedy
from mlflow_stability.vocabulary.sensitivity import FACTORS, score_in


class Severity(enum.IntEnum):
    """How bad it is; ordered, so that ``severity >= Severity.WARNING`` reads as it should."""

    INFO = 10
    """Worth knowing; changes no verdict."""
    WARNING = 20
    """Look at it."""
    CRITICAL = 30
    """The training is broken or lost."""


class Finding:
    """What every finding has, wherever it comes from: a diagnosis, a check of a model, or the record of a run."""

    __slots__ = ()

    kind: str
    """The type: ``loss_spike``, ``nan_detected``, ..."""
    severity: Severity
    """INFO, WARNING or CRITICAL; ordered, so that the worst is the largest."""
    message: str
    """What was found, with numbers, in one sentence."""
    place: str
    """The module, parameter group or loss that it was found in; empty: the whole training."""
    evidence: dict[str, float]
    """The numbers behind the message."""
    remedies: tuple[Remedy, ...]
    """What to do, most useful first."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.severity.name} {self.kind}: {self.message}>"


def most_severe(score: float) -> Severity:
    """How severe a finding so sure may be: CRITICAL only where it is found at low sensitivity, too."""
    return Severity.CRITICAL if score >= FACTORS["low"] else Severity.WARNING


@dataclass(frozen=True, slots=True)
class Event(Finding):
    """Something happened at a step: what, how bad, where, with which numbers, and what to try."""

    step: int
    kind: str
    """``nan_detected``: the name that ``mlflow-stability explain`` knows."""
    severity: Severity
    message: str
    """What happened, with numbers, in one sentence."""
    place: str = ""
    evidence: dict[str, float] = field(default_factory=dict)
    """The numbers behind the message."""
    remedies: tuple[Remedy, ...] = ()
    """What to try, most likely first."""
    attempt: int = 0
    time: float = 0.0
    judged: bool = True
    """Whether a detector found it in what was measured, so that judging the record again finds it too; False: it was
    said by what acts or looks while the training runs."""
    facts: Facts | None = None
    """What it knows, with types; None for types whose numbers are in `evidence` alone."""

    @classmethod
    def of(
        cls,
        facts: Facts,
        step: int,
        severity: Severity,
        *,
        kind: str = "",
        place: str = "",
        remedies: tuple[Remedy, ...] = (),
        attempt: int = 0,
        time: float = 0.0,
    ) -> Event:
        """Make the event of these facts, with their sentence and numbers; `kind`: where that is not theirs."""
        return cls(
            step,
            kind or facts.kind,
            severity,
            facts.sentence(step),
            place,
            facts.numbers(),
            remedies,
            attempt,
            time,
            facts=facts,
        )

    @property
    def score(self) -> float:
        """How sure it is: by how many times it exceeds what a finding needs at normal sensitivity; 1 to 64."""
        return score_in(self.evidence)
