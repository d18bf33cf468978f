"""What a detector says when it has seen something."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from mlflow_stability.vocabulary.sensitivity import score_in


class Severity(enum.IntEnum):
    """How bad it is; ordered, so that ``severity >= Severity.WARNING`` reads as it should."""

    INFO = 10
    WARNING = 20
    CRITICAL = 30


@dataclass(frozen=True, slots=True)
class Event:
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
    remedies: tuple[str, ...] = ()
    """What to try, most likely first."""
    attempt: int = 0
    time: float = 0.0
    judged: bool = True
    """Whether a detector found it in what was measured, so that judging the record again finds it too; False: it was
    said by what acts or looks while the training runs."""

    @property
    def score(self) -> float:
        """How sure it is: by how many times it exceeds what a finding needs at normal sensitivity; 1 to 64."""
        return score_in(self.evidence)
