"""Writes a report for programs: one JSON document, whatever was asked for.

In: a `Report`. Out: ASCII text that follows ``diagnosis.schema.json`` beside this file. Guarantees: numbers that JSON
does not know are the strings "nan", "inf" and "-inf", which Python's `float` reads back; what could not be told is
null; the same report gives the same bytes.
"""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import Any

from mlflow_stability.reports.report import Failure, Report
from mlflow_stability.vocabulary.result import Cause, CurveReading, Diagnosis, Finding, Severity, Text

SCHEMA_VERSION = 2


def render(report: Report) -> str:
    """The document as text."""
    return json.dumps(document(report), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """The JSON schema of the document, as it is shipped."""
    text = resources.files(__package__).joinpath("diagnosis.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def document(report: Report) -> dict[str, Any]:
    """The document as dictionaries and lists."""
    issues = [{"source": diagnosis.source, **_issue(episode)} for diagnosis, episode in report.issues()]
    return {
        "schema_version": SCHEMA_VERSION,
        "summary": _summary(report),
        "issues": issues,
        "runs": [_run(each) for each in report.diagnoses],
        "errors": [_error(each) for each in report.failures],
    }


def _summary(report: Report) -> dict[str, int]:
    summary = {}
    if report.asked_for_files:
        summary["total_files"] = report.files
    if report.asked_for_runs or not summary:
        summary["total_runs"] = report.runs
    summary["total_issues"] = sum(1 for _ in report.issues())
    for severity in sorted(Severity, reverse=True):
        summary[f"{severity.name.lower()}_count"] = report.count(severity)
    return summary


def _issue(episode: Finding) -> dict[str, Any]:
    return {
        "step": int(episode.start),
        "issue_type": episode.kind,
        "severity": episode.severity.name,
        "score": episode.score,
        "message": episode.message,
        "metrics": {name: number(value) for name, value in episode.metrics.items()},
        "facts": None if isinstance(episode.facts, Text) else episode.facts.as_json(),
        "found_by": episode.source.value,
        "place": episode.place,
        "metric": episode.metric,
        "peak_step": int(episode.peak),
        "end_step": int(episode.end),
        "events": int(episode.count),
        "attempt": int(episode.attempt),
        "recovered": episode.recovered,
        "experimental": episode.experimental,
        "remedies": [remedy.as_json() for remedy in episode.remedies],
        "cause": None if episode.cause is None else _cause(episode.cause),
    }


def _run(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "source": diagnosis.source,
        "name": diagnosis.name,
        "format": diagnosis.format,
        "basis": diagnosis.basis,
        "outcome": diagnosis.outcome,
        "severity": diagnosis.severity.name,
        "verdict": diagnosis.verdict,
        "ended": diagnosis.ended,
        "early_stopping_step": diagnosis.early_stopping_step,
        "first_step": None if diagnosis.steps is None else int(diagnosis.steps[0]),
        "last_step": None if diagnosis.steps is None else int(diagnosis.steps[1]),
        "points": int(diagnosis.points),
        "step_unit": diagnosis.unit,
        "judged": {
            "losses": list(diagnosis.judged.losses),
            "validations": list(diagnosis.judged.validations),
            "others": int(diagnosis.judged.others),
            "reasons": list(diagnosis.judged.reasons),
        },
        "findings": [_issue(episode) for episode in diagnosis.findings],
        "cause": None if diagnosis.cause is None else _cause(diagnosis.cause),
        "remedies": [remedy.as_json() for remedy in diagnosis.remedies],
        "curves": [_curve(reading) for reading in diagnosis.curves],
        "cannot_tell": list(map(str, diagnosis.cannot_tell)),
        "notes": list(diagnosis.notes),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "name": cause.name,
        "statement": cause.statement,
        "evidence": list(cause.evidence),
        "ruled_out": list(cause.ruled_out),
        "ruled_out_causes": list(cause.ruled_out_causes),
        "not_checked": list(cause.not_checked),
        "certainty": cause.certainty,
        "certain": cause.certain,
        "place": cause.place,
        "explains": cause.kind,
        "step": None if cause.step is None else int(cause.step),
        "since": None if cause.since is None else int(cause.since),
        "remedies": [remedy.as_json() for remedy in cause.remedies],
    }


def _curve(reading: CurveReading) -> dict[str, Any]:
    return {
        "metric": reading.metric,
        "place": reading.place,
        "points": int(reading.points),
        "first_step": int(reading.first_step),
        "last_step": int(reading.last_step),
        "first": number(reading.first),
        "last": number(reading.last),
        "best": number(reading.best),
        "best_step": int(reading.best_step),
        "trend": reading.trend,
        "change": number(reading.change),
        "first_level": number(reading.first_level),
        "last_level": number(reading.last_level),
        "stability": reading.stability,
        "volatility": number(reading.volatility),
        "pattern": reading.pattern,
        "shape": reading.shape,
        "health": reading.health,
        "expected_final": number(reading.expected_final),
        "spike_score": number(reading.spike_score),
    }


def _error(failure: Failure) -> dict[str, str]:
    return {"source": failure.source, "message": failure.message}


def number(value: float | None) -> float | str | None:
    """A number as JSON can have it."""
    if value is None:
        return None
    known = float(value)
    return known if math.isfinite(known) else str(known)
