"""Findings as the objects that the journal and the events of a run keep, and back.

In: a finding of one step. Out: plain JSON; numbers that JSON has not are the strings "nan", "inf" and "-inf". What an
earlier version recorded is read, too: its words and numbers are kept where this version would say something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlflow_stability.kinds.old_events import facts_of_old_event
from mlflow_stability.vocabulary.facts import Facts, facts_from_json
from mlflow_stability.vocabulary.result import Finding, Severity, Source, Span, Statement, Text, Where, read_remedies
from mlflow_stability.vocabulary.sensitivity import MAX_SCORE

SCORE = "score"
"""The name of the score among the recorded numbers; it is left out where it is the highest."""


def as_record(finding: Finding) -> dict[str, Any]:
    """The fields that are kept of a finding."""
    numbers = finding.metrics
    if finding.score < MAX_SCORE:
        numbers[SCORE] = finding.score
    return {
        "step": finding.step,
        "kind": finding.kind,
        "severity": finding.severity.name,
        "message": finding.message,
        "place": finding.place,
        "evidence": {name: _plain(float(value)) for name, value in numbers.items()},
        "remedies": [remedy.as_json() for remedy in finding.remedies],
        "attempt": finding.attempt,
        "time": _plain(finding.time),
        "judged": finding.source is not Source.REPORTED,
        "facts": None if isinstance(finding.facts, Text) else finding.facts.as_json(),
    }


def from_record(record: Mapping[str, Any]) -> Finding:
    """The finding that `as_record` wrote; KeyError, TypeError or ValueError for what is none."""
    severity = record["severity"]
    numbers = {name: float(value) for name, value in record.get("evidence", {}).items()}
    score = numbers.pop(SCORE, MAX_SCORE)
    step, place, message = _whole(record["step"]), record.get("place", ""), record["message"]
    facts = _facts_of(record, numbers)
    statements: tuple[Statement, ...] = ()
    if facts is None:
        facts = Text(message, tuple(numbers.items()))
    else:
        # A version that knows less, or says it in other words, does not change what the run said.
        known = facts.numbers()
        unknown = tuple((name, value) for name, value in numbers.items() if name not in known)
        if unknown or facts.sentence(step) != message:
            statements = (Statement(Text(message, unknown), step),)
    judged = record.get("judged", not record.get("live", False))  # `live` was its name, the other way round
    return Finding(
        record["kind"],
        Severity[severity] if isinstance(severity, str) else Severity(severity),
        Span(step, step, step),
        Where(place, attempt=_whole(record.get("attempt", 0))),
        facts,
        read_remedies(record.get("remedies", ())),
        Source.DETECTOR if judged else Source.REPORTED,
        score,
        float(record.get("time", 0.0)),
        statements=statements,
    )


def _facts_of(record: Mapping[str, Any], numbers: Mapping[str, float]) -> Facts | None:
    if "facts" not in record:  # recorded before there were any
        return facts_of_old_event(record["kind"], record["message"], numbers, record.get("place", ""))
    return None if record["facts"] is None else facts_from_json(record["facts"])


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)
