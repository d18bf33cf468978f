"""Write findings as the JSON objects of the journal and of the events of a run, and read them.

Numbers that JSON has not are the strings "nan", "inf" and "-inf". What an earlier version recorded is read with its
own words and numbers, where this version would say something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlflow_stability.kinds.old_events import facts_of_old_event
from mlflow_stability.vocabulary.facts import Facts, facts_from_json
from mlflow_stability.vocabulary.judging import MAX_SCORE
from mlflow_stability.vocabulary.result import Finding, Severity, Source, Span, Statement, Text, Where, read_remedies

SCORE = "score"  # the name of the score among the recorded numbers; it is left out where it is the highest


def as_record(finding: Finding) -> dict[str, Any]:
    """Return the fields of a finding that are recorded."""
    numbers = finding.metrics
    if finding.score < MAX_SCORE:
        numbers[SCORE] = finding.score
    return {
        "step": finding.step,
        "kind": finding.kind,
        "severity": finding.severity.name,
        "message": finding.message,
        "place": finding.place,
        "evidence": {name: _json_number(float(value)) for name, value in numbers.items()},
        "remedies": [remedy.as_json() for remedy in finding.remedies],
        "attempt": finding.attempt,
        "time": _json_number(finding.time),
        "judged": finding.source is not Source.REPORTED,
        "facts": None if isinstance(finding.facts, Text) else finding.facts.as_json(),
    }


def from_record(record: Mapping[str, Any]) -> Finding:
    """Return the finding of a record; raise KeyError, TypeError or ValueError where it is no record."""
    severity = record["severity"]
    numbers = {name: float(value) for name, value in record.get("evidence", {}).items()}
    score = numbers.pop(SCORE, MAX_SCORE)
    step, place, message = _integer(record["step"]), _text(record.get("place", "")), _text(record["message"])
    facts: Facts | None
    if "facts" not in record:  # recorded before findings had facts
        facts = facts_of_old_event(record["kind"], message, numbers, place)
    else:
        facts = None if record["facts"] is None else facts_from_json(record["facts"])
    statements: tuple[Statement, ...] = ()
    if facts is None:
        facts = Text(message, tuple(numbers.items()))
    else:
        names = facts.numbers()
        others = tuple((name, value) for name, value in numbers.items() if name not in names)
        try:
            sentence = facts.sentence(step)
        except ArithmeticError as error:
            raise ValueError(f"{record['kind']} with impossible numbers: {error}") from error
        if others or sentence != message:
            statements = (Statement(Text(message, others), step),)
    judged = record.get("judged", not record.get("live", False))  # formerly `live`, with the opposite meaning
    return Finding(
        _text(record["kind"]),
        Severity[severity] if isinstance(severity, str) else Severity(severity),
        Span(step, step, step),
        Where(place, attempt=_integer(record.get("attempt", 0))),
        facts,
        read_remedies(record.get("remedies", ())),
        Source.DETECTOR if judged else Source.REPORTED,
        score,
        float(record.get("time", 0.0)),
        statements=statements,
    )


def _integer(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)
