"""Findings: how severe they are, what they state, and their causes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mlflow_stability.vocabulary.facts import SINCE, Facts, TextEnum
from mlflow_stability.vocabulary.judging import FACTORS, MAX_SCORE
from mlflow_stability.vocabulary.result.remedy import Remedy


class Severity(enum.IntEnum):
    """How bad it is; ordered, so that ``severity >= Severity.WARNING`` reads as it should.

    Example:

        >>> max(Severity.INFO, Severity.CRITICAL).name
        'CRITICAL'
    """

    INFO = 10  # worth knowing; changes no verdict
    WARNING = 20  # look at it
    CRITICAL = 30  # the training is broken or lost


def most_severe(score: float) -> Severity:
    """Return the highest severity for this score: CRITICAL only if low sensitivity finds it, too."""
    return Severity.CRITICAL if score >= FACTORS["low"] else Severity.WARNING


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a finding came about, as far as the run shows."""

    name: str  # a word for programs: ``learning_rate_too_high``, ``bad_batch``, ``overflow``
    statement: str  # a sentence for people, with numbers
    evidence: tuple[str, ...] = ()  # what speaks for it, each with numbers
    ruled_out: tuple[str, ...] = ()  # what was shown not to be it, and how: "learning rate: constant at 3e-4, it fell"
    not_checked: tuple[str, ...] = ()  # what may be it all the same, for want of data: "gradient norm: not logged"
    certainty: str = "likely"
    """``certain``: seen directly; ``likely``: what came before it points there, and what would look the same was ruled
    out; ``possible``: other causes would look like this too."""
    place: str = ""  # the module where it began, where that is known
    kind: str = ""  # the kind of the finding that it explains: ``nan_detected``
    step: int | None = None  # the first step of that finding
    since: int | None = None
    """From which step on its evidence is seen: never after what it explains began, of a plateau within its first third;
    None for what has no step of its own."""
    remedies: tuple[Remedy, ...] = ()
    """What goes against it, where more is known than its name; empty: what goes against all causes of this name."""
    ruled_out_causes: tuple[str, ...] = ()  # the names of the causes that were shown not to be it
    repeats: tuple[tuple[str, int], ...] = ()
    """Type and step of reported findings whose sentences are part of the statement or the evidence."""

    def is_same(self, other: Cause) -> bool:
        """Whether both are shown as the same, whichever findings they explain."""
        return (self.name, self.statement) == (other.name, other.statement)

    @property
    def certain(self) -> bool:
        """Whether it was seen directly."""
        return self.certainty == "certain"


@dataclass(frozen=True, slots=True)
class Text(Facts):
    """A sentence in place of facts: of the user's own detector, of a log, or of a recording without facts."""

    text: str
    values: tuple[tuple[str, float], ...] = ()  # The numbers behind it, by name

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return self.text

    def numbers(self) -> dict[str, float]:
        return dict(self.values)

    @property
    def found_first(self) -> int | None:
        """The step that a recording without facts names."""
        since = dict(self.values).get(SINCE)
        return None if since is None else int(since)


@dataclass(frozen=True, slots=True)
class Statement:
    """One part of a finding's message."""

    facts: Facts
    step: int  # the step that the facts are about

    def sentence(self, unit: str) -> str:
        """Return the sentence, where the log counts in this unit."""
        return self.facts.sentence(self.step, unit)


FactsT = TypeVar("FactsT", bound=Facts)


class Source(TextEnum):
    """Who found something.

    Example:

        >>> Source("log") is Source.LOG
        True
    """

    DETECTOR = "detector"  # a detector, step by step; judging the record again finds it again
    WHOLE_CURVE = "whole_curve"  # a rule that sees whole curves, when the training was over
    REPORTED = "reported"  # what acts or looks while the training runs: the autopilot, probes, the courier
    LOG = "log"  # a log says it in words, or by how it ends


@dataclass(frozen=True, slots=True)
class Span:
    """The steps of a finding.

    Example:

        >>> from mlflow_stability import diagnose
        >>> diagnose("mlruns_fixtures/0/loss_spike").findings[0].span
        Span(start=400, peak=400, end=403, recovered=True)
    """

    start: int  # the first step
    peak: int  # the step at which it was worst
    end: int  # the last step
    recovered: bool | None = None  # whether things were as before afterwards; None where that is not known


@dataclass(frozen=True, slots=True)
class Where:
    """Where something was found.

    Example:

        >>> from mlflow_stability import diagnose
        >>> diagnose("mlruns_fixtures/0/loss_spike").findings[0].where
        Where(place='', metric='loss', attempt=0)
    """

    place: str = ""  # the module, parameter group or loss; empty: the whole training
    metric: str = ""  # the metric, by the name that the script gave it
    attempt: int = 0  # number of rollbacks before it


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """Something that was found in a training. Its message and its metrics are made from its facts.

    Example:

        >>> from mlflow_stability import diagnose
        >>> (finding,) = diagnose("mlruns_fixtures/0/loss_spike").findings
        >>> finding.kind, finding.severity.name, finding.step
        ('loss_spike', 'WARNING', 400)
        >>> finding.facts.threshold
        8.0
    """

    kind: str  # ``loss_spike``: the name that ``mlflow-stability explain`` knows
    severity: Severity  # INFO, WARNING or CRITICAL; ordered, so that the worst is the largest
    span: Span  # its steps
    where: Where  # where it was found
    facts: Facts  # what is known: a frozen dataclass whose fields have types and units
    remedies: tuple[Remedy, ...] = ()  # what to do, most useful first
    source: Source = Source.DETECTOR  # who found it
    score: float = MAX_SCORE  # how sure it is: how many times what a finding needs at normal sensitivity; 1 to 64
    time: float = 0.0  # when it was found, in seconds since the epoch; 0 where that is not known
    count: int = 1  # number of findings that were merged into it, or of points that it is made of
    statements: tuple[Statement, ...] = ()  # what it says, in order; empty: what its facts say of its first step
    also: tuple[Facts, ...] = ()  # facts of what was found of the same trouble in other ways, and is one with it
    spikes: tuple[int, ...] = ()  # of a divergence: the steps of the loss spikes that are part of it
    repeats: tuple[tuple[str, int], ...] = ()
    """Type and step of reported findings whose sentences are part of the message."""
    experimental: bool = False  # whether the judgement is experimental: at most INFO, and changes no verdict
    cause: Cause | None = None  # why it began; None where that is not known, and for what is only mentioned
    unit: str = "step"  # what the log calls a step: ``epoch`` where it counts nothing else
    line: int | None = None  # the line of a printed log at which it begins

    @classmethod
    def at(
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
        source: Source = Source.REPORTED,
    ) -> Finding:
        """Make a finding about one step; `kind`: where it is not that of the facts."""
        where = Where(place, attempt=attempt)
        return cls(kind or facts.kind, severity, Span(step, step, step), where, facts, remedies, source, time=time)

    @property
    def step(self) -> int:
        """The first step."""
        return self.span.start

    @property
    def start(self) -> int:
        """The first step."""
        return self.span.start

    @property
    def peak(self) -> int:
        """The step at which it was worst."""
        return self.span.peak

    @property
    def end(self) -> int:
        """The last step."""
        return self.span.end

    @property
    def recovered(self) -> bool | None:
        """Whether things were as before afterwards; None where that is not known."""
        return self.span.recovered

    @property
    def place(self) -> str:
        """The module, parameter group or loss that it was found in; empty: the whole training."""
        return self.where.place

    @property
    def metric(self) -> str:
        """The metric it was seen in, by the name that the script gave it."""
        return self.where.metric

    @property
    def attempt(self) -> int:
        """Number of rollbacks before it."""
        return self.where.attempt

    @property
    def message(self) -> str:
        """What was found, with numbers, in a few sentences."""
        message = " ".join(statement.sentence(self.unit) for statement in self.stated)
        return message if self.line is None else f"{message.removesuffix('.')} (line {self.line:,})."

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers behind the message, by name."""
        numbers = self.facts.numbers()
        for facts in (*(statement.facts for statement in self.stated), *self.also):
            numbers = {**numbers, **{name: value for name, value in facts.numbers().items() if name not in numbers}}
        return numbers if self.line is None else {**numbers, "line": float(self.line)}

    @property
    def stated(self) -> tuple[Statement, ...]:
        """What it says, in order."""
        return self.statements or (Statement(self.facts, self.span.start),)

    def facts_as(self, facts: type[FactsT]) -> FactsT | None:
        """The facts of this class, if it was found in that way; None otherwise."""
        return next((candidate for candidate in (self.facts, *self.also) if isinstance(candidate, facts)), None)

    def with_span(self, **changes: Any) -> Finding:
        """Return a copy with other fields of `Span`; its sentences keep the original steps."""
        return replace(self, span=replace(self.span, **changes), statements=self.stated)

    def shifted(self, offset: int) -> Finding:
        """The finding in a run that counts its steps from `offset`."""
        span = self.span
        moved = replace(span, start=span.start + offset, peak=span.peak + offset, end=span.end + offset)
        return replace(self, span=moved)

    def __repr__(self) -> str:
        return f"<Finding {self.severity.name} {self.kind}: {self.message}>"
