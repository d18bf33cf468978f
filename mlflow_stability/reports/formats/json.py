"""JSON for programs.

The documents follow ``diagnosis.schema.json`` and ``comparison.schema.json`` beside this file. Numbers that JSON does
not know are the strings "nan", "inf" and "-inf", which Python's `float` reads back; what is not known is null; the same
input gives the same bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib import resources
from numbers import Integral, Real
from typing import Any

from mlflow_stability.reports.report import Report, ReportFormat
from mlflow_stability.vocabulary.measured.layer_comparison import LayerComparison
from mlflow_stability.vocabulary.result import Cause, Compared, Comparison, Diagnosis, Finding, Severity, Text

SCHEMA_VERSION = 2
_DRAWN = frozenset({"sketch", "course", "error"})
"""Fields of a card that hold curves, which are metrics of the runs, or what unread runs are listed with."""


def run(report: Report) -> str:
    return _dumped(document(report))


def comparison(compared: Comparison) -> str:
    return _dumped(comparison_document(compared))


FORMAT = ReportFormat("json", run, comparison, (".json",), order=10)


def schema(name: str) -> dict[str, Any]:
    """Return the published JSON schema: of a ``diagnosis`` or a ``comparison``."""
    text = resources.files(__package__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def json_value(value: Any) -> Any:
    """Return the value with lists for tuples, names for severities, and words for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, Severity):
        return value.name
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else str(number)


def document(report: Report) -> dict[str, Any]:
    values: dict[str, Any] = json_value(
        {
            "schema_version": SCHEMA_VERSION,
            "summary": _summary(report),
            "issues": [{"source": diagnosis.source, **_issue(finding)} for diagnosis, finding in report.issues()],
            "runs": [_diagnosis(diagnosis) for diagnosis in report.diagnoses],
            "errors": [{"source": failure.source, "message": failure.message} for failure in report.failures],
        }
    )
    return values


def _dumped(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


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


def _issue(finding: Finding) -> dict[str, Any]:
    return {
        "step": finding.start,
        "issue_type": finding.kind,
        "severity": finding.severity.name,
        "score": finding.score,
        "message": finding.message,
        "metrics": {name: float(value) for name, value in finding.metrics.items()},
        "facts": None if isinstance(finding.facts, Text) else finding.facts.as_json(),
        "found_by": finding.source.value,
        "place": finding.place,
        "metric": finding.metric,
        "peak_step": finding.peak,
        "end_step": finding.end,
        "events": finding.count,
        "attempt": finding.attempt,
        "recovered": finding.recovered,
        "experimental": finding.experimental,
        "remedies": [remedy.as_json() for remedy in finding.remedies],
        "cause": None if finding.cause is None else _cause(finding.cause),
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    first_step, last_step = diagnosis.steps or (None, None)
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
        "first_step": first_step,
        "last_step": last_step,
        "points": diagnosis.points,
        "step_unit": diagnosis.unit,
        "judged": asdict(diagnosis.judged),
        "findings": [_issue(finding) for finding in diagnosis.findings],
        "cause": None if diagnosis.cause is None else _cause(diagnosis.cause),
        "remedies": [remedy.as_json() for remedy in diagnosis.remedies],
        "curves": [_without(asdict(reading), "unit") for reading in diagnosis.curves],
        "cannot_tell": list(map(str, diagnosis.cannot_tell)),
        "notes": diagnosis.notes,
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "name": cause.name,
        "statement": cause.statement,
        "evidence": cause.evidence,
        "ruled_out": cause.ruled_out,
        "ruled_out_causes": cause.ruled_out_causes,
        "not_checked": cause.not_checked,
        "certainty": cause.certainty,
        "certain": cause.certain,
        "place": cause.place,
        "explains": cause.kind,
        "step": cause.step,
        "since": cause.since,
        "remedies": [remedy.as_json() for remedy in cause.remedies],
    }


def comparison_document(compared: Comparison) -> dict[str, Any]:
    gate, cohort = compared.gate, compared.cohort
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "summary": compared.summary,
        "asked": compared.asked,
        "interrupted": compared.interrupted,
        "runs": [_compared(run) for run in compared.runs],
        "errors": [{"source": card.source, "message": card.error} for card in compared.unread],
        "differences": [asdict(difference) for difference in compared.differences],
        "first_difference": None if compared.first_difference is None else asdict(compared.first_difference),
        "layers": [_layers(beside) for beside in compared.layers],
        "gate": None if gate is None else {"passed": gate.passed, **asdict(gate)},
        # The plots hold the parameters and losses of the runs once more.
        "cohort": None if cohort is None else _without(asdict(cohort), "plots"),
        "notes": compared.notes,
    }
    values: dict[str, Any] = json_value(document)
    return values


def _compared(run: Compared) -> dict[str, Any]:
    card = run.card
    return {
        **_without(asdict(card), *_DRAWN),
        "severity": card.severity,
        "unstable": card.unstable,
        "lost": card.lost,
        "recovery_steps": card.recovery_steps,
        "spike_rate": None if run.spike_rate is None else asdict(run.spike_rate),
    }


def _layers(beside: LayerComparison) -> dict[str, Any]:
    """Without the pictures: the runs' own metrics say more about each cell."""
    return {
        "quantity": beside.quantity,
        "layers": len(beside.layers),
        "aligned": beside.aligned,
        "zeros": beside.zeros,
        "steps_a_column": beside.width,
        "farthest": None if beside.farthest is None else asdict(beside.farthest),
        "broken": [None if broken is None else asdict(broken) for broken in beside.broken],
    }


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
