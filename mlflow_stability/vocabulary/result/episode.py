"""A stretch of trouble: neighbouring events of one kind, as people talk about them and reports count them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.result.cause import Cause
from mlflow_stability.vocabulary.result.event import Finding, Severity
from mlflow_stability.vocabulary.result.remedy import Remedy
from mlflow_stability.vocabulary.result.statement import Statement
from mlflow_stability.vocabulary.sensitivity import score_in

FactsT = TypeVar("FactsT", bound=Facts)


@dataclass(frozen=True, slots=True, repr=False)
class Episode(Finding):
    """One thing that went wrong in a training, from its first step to its last: a finding of a diagnosis."""

    kind: str
    """``loss_spike``: the name that ``mlflow-stability explain`` knows."""
    severity: Severity
    """INFO, WARNING or CRITICAL."""
    start: int
    """Its first step."""
    peak: int
    """The step at which it was worst."""
    end: int
    """Its last step."""
    message: str = ""
    """What happened, with numbers, in a few sentences: those of `statements`."""
    events: int = 1
    """How many events it is made of."""
    recovered: bool | None = None
    """Whether things were as before afterwards; None where that cannot be told."""
    metric: str = ""
    """The metric it was seen in, by the name that the script gave it."""
    place: str = ""
    """The module, the parameter group, the one of several losses."""
    attempt: int = 0
    """How many rollbacks there were before it."""
    evidence: dict[str, float] = field(default_factory=dict)
    """The numbers behind the message."""
    remedies: tuple[Remedy, ...] = ()
    """What to do, most useful first."""
    spikes: tuple[int, ...] = ()
    """Of a divergence: the steps of the loss spikes that are part of it and no episodes of their own."""
    experimental: bool = False
    """Whether the judgement is experimental: such are never above INFO, and change no verdict."""
    cause: Cause | None = None
    """Why it began; None where that is not known, and for what is only mentioned."""
    unit: str = "step"
    """What the log calls a step: ``epoch`` where it counts nothing else."""
    repeats: tuple[tuple[str, int], ...] = ()
    """Type and step of reported findings whose sentences are part of the message."""
    facts: Facts | None = None
    """What is known, as a frozen dataclass whose fields have types and units; None for types that have none."""
    statements: tuple[Statement, ...] = ()
    """What it says, in order: its facts, and what the diagnosis adds to them."""
    also: tuple[Facts, ...] = ()
    """Facts of what was found of the same trouble in other ways, and is one with it."""
    line: int | None = None
    """The line of a printed log at which it begins."""

    def known(self, facts: type[FactsT]) -> FactsT | None:
        """The facts of this class, if it was found in that way; None otherwise."""
        return next((known for known in (self.facts, *self.also) if isinstance(known, facts)), None)

    @property
    def score(self) -> float:
        """How sure it is: by how many times it exceeds what a finding needs at normal sensitivity; 1 to 64."""
        return score_in(self.evidence)
