"""Findings for tests, made from the few things that a test is about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlflow_stability.kinds.loss.divergence import DivergenceFacts
from mlflow_stability.kinds.old_events import facts_of_old_event
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Finding, Remedy, Severity, Source, Span, Statement, Text, Where


def at_step(
    step: int,
    kind: str,
    severity: Severity,
    message: str = "",
    place: str = "",
    evidence: Mapping[str, float] | None = None,
    *,
    remedies: tuple[Remedy, ...] = (),
    attempt: int = 0,
    time: float = 0.0,
    judged: bool = True,
    facts: Facts | None = None,
) -> Finding:
    """A finding of one step that says `message`; its facts are made from its numbers where they are not given."""
    numbers = dict(evidence or {})
    text = Text(message, tuple(numbers.items()))
    facts = facts or facts_of_old_event(kind, message, numbers, place) or _partial(kind, numbers) or text
    result = Finding.at(facts, step, severity, kind=kind, place=place, remedies=remedies, attempt=attempt, time=time)
    return _with(result, message, step, source=Source.DETECTOR if judged else Source.REPORTED)


def over_steps(
    kind: str,
    severity: Severity,
    start: int,
    peak: int,
    end: int,
    message: str = "",
    count: int = 1,
    *,
    recovered: bool | None = None,
    metric: str = "",
    place: str = "",
    attempt: int = 0,
    facts: Facts | None = None,
    **others: Any,
) -> Finding:
    """A finding over several steps that says `message`."""
    span, where = Span(start, peak, end, recovered), Where(place, metric, attempt)
    return Finding(kind, severity, span, where, facts or Text(message), count=count, **others)


def changed(finding: Finding, **values: Any) -> Finding:
    """The finding with other values; steps, place, metric, attempt and message by their own names."""
    step = values.pop("step", None)
    if step is not None:
        values |= dict.fromkeys(("start", "peak", "end"), step)
    span = {name: values.pop(name) for name in ("start", "peak", "end", "recovered") if name in values}
    where = {name: values.pop(name) for name in ("place", "metric", "attempt") if name in values}
    message = values.pop("message", None)
    finding = replace(finding, span=replace(finding.span, **span), where=replace(finding.where, **where))
    if message is not None:
        finding = replace(finding, statements=(Statement(Text(message), finding.start),))
    return replace(finding, **values)


def _partial(kind: str, numbers: Mapping[str, float]) -> Facts | None:
    """A divergence of which a test names only the loss and its level."""
    if kind != "divergence" or not {"level", "onset", "first_high"} & set(numbers):
        return None
    onset, first = numbers.get("onset"), numbers.get("first_high")
    return DivergenceFacts(
        numbers.get("loss", math.nan),
        numbers.get("level", math.nan),
        math.nan,
        math.nan,
        0,
        0,
        onset=None if onset is None else int(onset),
        first_high=None if first is None else int(first),
    )


def _with(finding: Finding, message: str, step: int, *, source: Source) -> Finding:
    statements = () if finding.message == message else (Statement(Text(message), step),)
    return replace(finding, source=source, statements=statements)
