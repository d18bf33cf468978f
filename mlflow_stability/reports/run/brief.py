"""Writes a diagnosis as a small JSON document: for assistants, chat messages and log lines.

In: a `Diagnosis`. Out: what happened, why, what to do, the worst findings. Guarantees: at most `LARGEST` bytes for each
run, whatever it is called and however much was found; what was left out is counted; keys are those of the full document
where they mean the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.run.json_document import SCHEMA_VERSION, number
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity

LARGEST = 8000
"""Bytes of one run."""
LONGEST = 300
"""Characters of a sentence."""
SIZES = ((8, 5, LONGEST), (5, 4, 200), (3, 3, 120), (2, 2, 60), (1, 1, 40), (0, 1, 24))
"""How many findings, how many sentences of each kind, and how long: the first with which it is small enough."""


@dataclass(frozen=True, slots=True)
class _Size:
    findings: int
    few: int
    longest: int

    def cut(self, text: str) -> str:
        shown = plain(text)
        return shown if len(shown) <= self.longest else f"{shown[: self.longest - 3]}..."

    def some(self, sentences: Iterable[str]) -> list[str]:
        listed = list(sentences)
        more = [f"{len(listed) - self.few} more"] if len(listed) > self.few else []
        return [*map(self.cut, listed[: self.few]), *more]


def render(report: Report) -> str:
    """The document as text."""
    said = {
        "schema_version": SCHEMA_VERSION,
        "brief": True,
        "runs": [brief(each) for each in report.diagnoses],
        "errors": [{"source": each.source, "message": each.message} for each in report.failures],
    }
    return json.dumps(said, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def brief(diagnosis: Diagnosis) -> dict[str, Any]:
    """One run."""
    said: dict[str, Any] = {}
    for size in SIZES:
        said = _said(diagnosis, _Size(*size))
        if len(json.dumps(said, indent=4)) <= LARGEST:
            break
    return said


def finding(episode: Finding, longest: int = LONGEST) -> dict[str, Any]:
    """One finding, with what the full document calls it."""
    cut = _Size(0, 0, longest).cut
    said = {
        "step": int(episode.start),
        "end_step": int(episode.end),
        "issue_type": episode.kind,
        "severity": episode.severity.name,
        "message": cut(episode.message),
        "place": cut(episode.place),
        "recovered": episode.recovered,
        "cause": "" if episode.cause is None else episode.cause.name,
    }
    return {name: value for name, value in said.items() if value not in ("", None)}


def _said(diagnosis: Diagnosis, size: _Size) -> dict[str, Any]:
    bad = [each for each in diagnosis.findings if each.severity > Severity.INFO]
    worst = sorted(bad, key=lambda each: -each.severity)[: size.findings]
    counts = Counter(each.severity.name for each in diagnosis.findings)
    cause = diagnosis.cause
    return {
        "source": size.cut(diagnosis.source),
        "name": size.cut(diagnosis.name),
        "outcome": diagnosis.outcome,
        "verdict": size.cut(diagnosis.verdict),
        "ended": diagnosis.ended,
        "first_step": None if diagnosis.steps is None else int(diagnosis.steps[0]),
        "last_step": None if diagnosis.steps is None else int(diagnosis.steps[1]),
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
        "finding_counts": {each.name: counts[each.name] for each in sorted(Severity, reverse=True)},
        "findings": [finding(each, size.longest) for each in sorted(worst, key=lambda each: each.start)],
        "more_findings": len(bad) - len(worst),
        "curves": [
            {
                "metric": size.cut(each.metric),
                "first": number(each.first),
                "last": number(each.last),
                "best": number(each.best),
                "best_step": int(each.best_step),
                "trend": each.trend,
            }
            for each in diagnosis.curves[: size.few]
        ],
        "cannot_tell": size.some(tuple(map(str, diagnosis.cannot_tell))),
    }
