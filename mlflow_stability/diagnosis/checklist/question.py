"""What one question of a checklist is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.vocabulary.result import Diagnosis

State = Literal["ok", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question."""

    finding: str
    state: State


@dataclass(frozen=True, slots=True)
class Case:
    """What the questions are about."""

    around: EpisodeContext
    diagnosis: Diagnosis


AnswerFunction = Callable[[Case], Answer]


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to check."""

    ask: str
    how: str
    """How to check it by hand."""
    answer: AnswerFunction
    """What a run shows of it."""
