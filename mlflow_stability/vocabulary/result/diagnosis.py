"""What is concluded about one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mlflow_stability.vocabulary.result.finding import Cause, Finding, Severity
from mlflow_stability.vocabulary.result.remedy import Remedy

_pages: dict[str, Callable[[Any], str]] = {}


def register_page(type_name: str, page: Callable[[Any], str]) -> None:
    """Have notebooks show results of this type as the HTML that `page` returns; without one, as their `repr`."""
    _pages[type_name] = page


class ShownAsPage:
    """A result that a notebook shows as a page."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the page for Jupyter; None: show the `repr`."""
        page = _pages.get(type(self).__name__)
        return None if page is None else page(self)


@dataclass(frozen=True, slots=True)
class AskedCurves:
    """Names of the loss curves that a caller chose; empty: chosen by the curves."""

    loss: str = ""
    val_loss: str = ""

    def __bool__(self) -> bool:
        """Whether any was given."""
        return bool(self.loss or self.val_loss)


@dataclass(frozen=True, slots=True)
class JudgedCurves:
    """The curves that a diagnosis was made from."""

    losses: tuple[str, ...] = ()  # the main one first; several where several models train, or one loss follows another
    validations: tuple[str, ...] = ()
    others: int = 0  # how many other curves the run has, without clocks, counters and the layers of a recorded run
    reasons: tuple[str, ...] = ()  # why these, where the names alone do not decide


JUDGED_LIVE = "Events were recorded while it trained; whole curves were looked at in addition."
"""Note on a run that was judged completely; comparisons leave it out."""


@dataclass(frozen=True, slots=True)
class CurveReading:
    """Description of one whole loss curve; a word is empty where it cannot be determined."""

    metric: str
    place: str
    points: int
    first_step: int
    last_step: int
    first: float
    last: float
    best: float
    best_step: int
    trend: str = ""  # ``strong``, ``steady``, ``marginal``, ``flat``, ``rising``
    change: float | None = None  # from the first level to the last, as a share: -0.62 is a loss that lost 62 %
    first_level: float | None = None  # median of the first tenth, or of the part of it before the curve left that level
    last_level: float | None = None  # median of the last tenth
    stability: str = ""  # ``smooth``, ``noisy``, ``very noisy``
    volatility: float | None = None  # spread of the last tenth around its trend, as a share of its level
    pattern: str = ""  # ``monotone``, ``not monotone``, ``oscillating``; empty for a curve that does not move
    shape: str = ""  # ``decay``, ``u-shape``, ``plateau``, ``explosion``
    health: str = ""  # ``ok``, ``broken``, ``exploding``, ``converged``
    expected_final: float | None = None  # where the fitted decay ends; None where no fit holds
    spike_score: float | None = None
    """Share of values 7 sigma or more from the rolling mean of 1000, as OLMo 2 defines it; None below 1000 points."""
    unit: str = "step"  # what the log calls a step: ``epoch`` where it counts nothing else


@dataclass(frozen=True, slots=True)
class Sketch:
    """A loss curve small enough to draw: for each of at most 400 stretches its first step, lowest and highest value."""

    metric: str
    steps: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]  # Non-finite values are left out of both; a stretch that has no other is NaN


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Something that could not be judged, and why."""

    sentence: str
    kinds: frozenset[str] = frozenset()  # the kinds of findings that it is about; empty: all

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Diagnosis(ShownAsPage):
    """The conclusion about one run.

    Example:

        >>> from mlflow_stability import diagnose
        >>> diagnosis = diagnose("mlruns_fixtures/0/loss_spike")
        >>> diagnosis.outcome
        'unstable'
        >>> [str(remedy) for remedy in diagnosis.remedies]
        ['Inspect the batch at step 400.']
    """

    source: str  # the run id or path that was asked about
    name: str  # what the run is called
    format: str  # what it is: ``MLflow run``, ``CSV``, ...
    basis: str  # what was read
    outcome: str
    """``healthy``; ``unstable``: trouble that passed; ``recovered``: trouble that a rollback ended; ``diverged``;
    ``broken``: non-finite to the end; ``stuck``; ``overfitted``; ``crashed``, ``killed``, ``out_of_memory``,
    ``exited``, ``interrupted``; ``cannot_tell``; ``not_found``: nothing of the kinds that were asked for."""
    verdict: str  # one sentence
    findings: tuple[Finding, ...] = ()  # in order of time
    cause: Cause | None = None  # of the finding that decides the outcome; each episode has its own beside it
    remedies: tuple[Remedy, ...] = ()  # what to change, most useful first, each once
    curves: tuple[CurveReading, ...] = ()  # how each loss curve went, read as a whole
    sketches: tuple[Sketch, ...] = ()  # the loss curves, small enough to draw
    judged: JudgedCurves = field(default_factory=JudgedCurves)  # which curves are taken for its losses
    cannot_tell: tuple[NotJudged, ...] = ()  # what could not be judged, and why
    asked_kinds: tuple[str, ...] = ()  # the kinds of findings that were asked for; empty: all
    notes: tuple[str, ...] = ()  # what else there is to know about what was read
    ended: str = ""  # how the process ended, where that is known: ``finished``, ``killed``, …
    steps: tuple[int, int] | None = None  # first and last step; None for a run without any
    points: int = 0  # how many values were looked at
    unit: str = "step"  # what the log calls a step: ``epoch`` where it counts nothing else

    def __repr__(self) -> str:
        cause = f" Cause ({self.cause.certainty}): {self.cause.statement}" if self.cause else ""
        return f"<Diagnosis of {self.name or self.source}: {self.verdict}{cause}>"

    @property
    def early_stopping_step(self) -> int | None:
        """The step at which a condition of `stop_on` ended the training; None where none did."""
        return next((finding.start for finding in self.findings if finding.kind == "early_stopping"), None)

    @property
    def severity(self) -> Severity:
        """The worst severity of its findings; INFO where there is none."""
        return max((finding.severity for finding in self.findings), default=Severity.INFO)
