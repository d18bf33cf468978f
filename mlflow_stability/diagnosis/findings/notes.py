"""What a diagnosis adds to a finding: how it went on, how often it came, where else it was seen.

Each is a `Facts` with a sentence of its own, behind the one of the finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Finding, Statement
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.phrases import counted, some_of

NAMED_LAYERS = 5
"""Number of layers that a sentence names; the evidence holds all."""


class Outcome(Enum):
    """What came after a rise, in a sentence."""

    UNANSWERED = "The loss did not rise."
    WITHIN_NOISE = "Within the noise of the whole run."
    RECOVERED = "The loss recovered."


@dataclass(frozen=True, slots=True)
class OutcomeNote(Facts):
    outcome: Outcome

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``The loss recovered.``"""
        return self.outcome.value


@dataclass(frozen=True, slots=True)
class FallingNote(Facts):
    """A loss that jumped and has been falling since."""

    highest: float
    """In the unit of the loss."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``The loss has been falling since its maximum of 7.31.``"""
        return f"The loss has been falling since its maximum of {self.highest:.4g}."


@dataclass(frozen=True, slots=True)
class RipplesNote(Facts):
    """Slow rises that recovered, many of them."""

    signal: str
    count: int
    last_step: int
    smallest: float
    """Smallest rise, as a share of the level before."""
    largest: float
    """Largest rise, as a share of the level before."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss rose slowly and recovered 4 times between step 100 and step 900, by 3% to 8%.``"""
        return (
            f"{self.signal} rose slowly and recovered {self.count} times between {unit} {step} and {unit} "
            f"{self.last_step}, by {self.smallest:.0%} to {self.largest:.0%}."
        )


@dataclass(frozen=True, slots=True)
class RepeatedNote(Facts):
    """A finding that came several times; `step` is the last one."""

    count: int

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``Found 3 times, last at step 120.``"""
        return f"Found {self.count} times, last at {unit} {step}."


@dataclass(frozen=True, slots=True)
class SaidAgainNote(Facts):
    """A line that a log repeats; `step` is the last one."""

    count: int

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``Logged 3 times until step 120.``"""
        return f"Logged {self.count} times until {unit} {step}."


@dataclass(frozen=True, slots=True)
class SkippedToTheEnd(Facts):
    """Steps that a log says were skipped, up to its end; `step` is the first one."""

    count: int
    last_step: int

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``40 steps skipped from step 200 to the end of the run at step 240 (reported by the log).``"""
        return (
            f"{counted(self.count, unit)} skipped from {unit} {step} to the end of the run at {unit} {self.last_step} "
            "(reported by the log)."
        )


@dataclass(frozen=True, slots=True)
class CountRose(Facts):
    """A count that a script logs rose; `step` is where."""

    signal: str
    before: float
    after: float

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``rollback_count rose from 1 to 2 at step 300.``"""
        return f"{self.signal} rose from {self.before:g} to {self.after:g} at {unit} {step}."


@dataclass(frozen=True, slots=True)
class NanAfterInf(Facts):
    nan: Facts
    infinity: NonFiniteFacts

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss is NaN at step 401.``: without a last finite value that the infinity names, too."""
        sentence = self.nan.sentence(step, unit)
        return sentence.replace(self.infinity.last_finite_clause, "", 1)


@dataclass(frozen=True, slots=True)
class OriginNote(Facts):
    """The operation with the first non-finite result."""

    origin: NanOriginFacts

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """What the origin says, without its step."""
        return self.origin.statement


@dataclass(frozen=True, slots=True)
class GradientFlowFacts(Facts):
    gradient_flow: float
    """Share of layers whose gradient norm lies in a healthy band."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``gradient flow 83%``."""
        return f"gradient flow {self.gradient_flow:.0%}"


@dataclass(frozen=True, slots=True)
class OtherLayersNote(Facts):
    layers: tuple[tuple[str, float], ...]
    """Name and value of each."""
    beside_one: bool
    """Whether the finding itself names one."""

    def numbers(self) -> dict[str, float]:
        """The values, as ``layer.NAME``."""
        return {f"layer.{name}": value for name, value in self.layers}

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``Also in 2 other layers: blocks.0, blocks.1.``"""
        count = len(self.layers)
        where = f"Also in {counted(count, 'other layer')}" if self.beside_one else f"In {counted(count, 'layer')}"
        return f"{where}: {some_of([name for name, _ in self.layers], NAMED_LAYERS)}."


def with_note(finding: Finding, *notes: Facts, step: int | None = None) -> Finding:
    """Add notes to a finding, about its first step or another one."""
    at = finding.start if step is None else step
    return replace(finding, statements=(*finding.stated, *(Statement(note, at) for note in notes)))


def also_known(telling: Finding, *others: Finding) -> tuple[Facts, ...]:
    """Return the facts of several findings that are one, except those that its sentence is made of."""
    every = [facts for finding in (telling, *others) for facts in (finding.facts, *finding.also)]
    return tuple(dict.fromkeys(facts for facts in every if facts != telling.facts))


def with_lines(findings: Iterable[Finding], history: RunHistory, starts: Mapping[int, int]) -> tuple[Finding, ...]:
    """Add the line of the log at which each finding begins."""
    metrics = {metric.name: metric for metric in history.metrics if metric.lines is not None}
    return tuple(_with_line(finding, metrics.get(finding.metric), starts) for finding in findings)


def _with_line(finding: Finding, metric: Metric | None, starts: Mapping[int, int]) -> Finding:
    if metric is None or metric.lines is None:
        return finding
    places = np.flatnonzero(metric.series.steps == finding.start)
    attempts = [starts.get(attempt, attempt) for attempt in metric.series.attempts[places].tolist()]
    lines = [int(metric.lines[at]) for at, attempt in zip(places, attempts, strict=True) if attempt == finding.attempt]
    return replace(finding, line=lines[0]) if lines else finding
