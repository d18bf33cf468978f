"""Write a diagnosis as a small JSON document: for assistants, chat messages and log lines.

It has what happened, why, what to do and the worst findings, in at most `MAX_BYTES` for each run; what is left out is
counted. Keys are those of the full document where they mean the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.formats.json import SCHEMA_VERSION, json_value
from mlflow_stability.reports.report import Report
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity

MAX_BYTES = 8000  # bytes of one run


@dataclass(frozen=True, slots=True)
class _Size:
    findings: int
    sentences: int  # sentences of each kind
    characters: int  # characters of a sentence

    def cut(self, text: str) -> str:
        shown = plain(text)
        return shown if len(shown) <= self.characters else f"{shown[: self.characters - 3]}..."

    def some(self, sentences: Iterable[str]) -> list[str]:
        listed = list(sentences)
        more = [f"{len(listed) - self.sentences} more"] if len(listed) > self.sentences else []
        return [*map(self.cut, listed[: self.sentences]), *more]


# The first with which a document is small enough is used.
_SIZES = (
    _Size(8, 5, 300),
    _Size(5, 4, 200),
    _Size(3, 3, 120),
    _Size(2, 2, 60),
    _Size(1, 1, 40),
    _Size(0, 1, 24),
)


def render(report: Report) -> str:
    document = {
        "schema_version": SCHEMA_VERSION,
        "brief": True,
        "runs": [brief(diagnosis) for diagnosis in report.diagnoses],
        "errors": [{"source": failure.source, "message": failure.message} for failure in report.failures],
    }
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def brief(diagnosis: Diagnosis) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for size in _SIZES:
        document = _run(diagnosis, size)
        if len(json.dumps(document, indent=4)) <= MAX_BYTES:
            break
    return document


def brief_finding(finding: Finding, characters: int = _SIZES[0].characters) -> dict[str, Any]:
    """Return one finding with the keys of the full document, without empty values."""
    cut = _Size(0, 0, characters).cut
    values = {
        "step": int(finding.start),
        "end_step": int(finding.end),
        "issue_type": finding.kind,
        "severity": finding.severity.name,
        "message": cut(finding.message),
        "place": cut(finding.place),
        "recovered": finding.recovered,
        "cause": "" if finding.cause is None else finding.cause.name,
    }
    return {name: value for name, value in values.items() if value not in ("", None)}


def _run(diagnosis: Diagnosis, size: _Size) -> dict[str, Any]:
    bad = [finding for finding in diagnosis.findings if finding.severity > Severity.INFO]
    worst = sorted(bad, key=lambda finding: -finding.severity)[: size.findings]
    counts = Counter(finding.severity for finding in diagnosis.findings)
    cause = diagnosis.cause
    first_step, last_step = diagnosis.steps or (None, None)
    curves = [
        {
            "metric": size.cut(reading.metric),
            "first": reading.first,
            "last": reading.last,
            "best": reading.best,
            "best_step": reading.best_step,
            "trend": reading.trend,
        }
        for reading in diagnosis.curves[: size.sentences]
    ]
    return {
        "source": size.cut(diagnosis.source),
        "name": size.cut(diagnosis.name),
        "outcome": diagnosis.outcome,
        "verdict": size.cut(diagnosis.verdict),
        "ended": diagnosis.ended,
        "first_step": json_value(first_step),
        "last_step": json_value(last_step),
        "cause": None
        if cause is None
        else {
            "name": cause.name,
            "certainty": cause.certainty,
            "statement": size.cut(cause.statement),
            "evidence": size.some(cause.evidence),
            "ruled_out": size.some(cause.ruled_out),
        },
        "remedies": size.some(map(str, diagnosis.remedies)),
        "finding_counts": {severity.name: counts[severity] for severity in sorted(Severity, reverse=True)},
        "findings": [
            brief_finding(finding, size.characters) for finding in sorted(worst, key=lambda finding: finding.start)
        ],
        "more_findings": len(bad) - len(worst),
        "curves": json_value(curves),
        "cannot_tell": size.some(map(str, diagnosis.cannot_tell)),
    }
