"""Restrict a diagnosis to some kinds of findings.

The verdict is kept if no finding above INFO is hidden; a run whose trouble is hidden is never called healthy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mlflow_stability.diagnosis.advice import remedies_of
from mlflow_stability.diagnosis.causes.causes import explainable
from mlflow_stability.diagnosis.verdict import deciding_of, listed, outcome_of, verdict_of
from mlflow_stability.kinds.catalog import noun_of
from mlflow_stability.vocabulary.result import Diagnosis, Severity


def filter_kinds(diagnosis: Diagnosis, kinds: Collection[str]) -> Diagnosis:
    """Return the diagnosis restricted to these kinds; unchanged for no kinds."""
    if not kinds:
        return diagnosis
    kept = tuple(finding for finding in diagnosis.findings if finding.kind in kinds)
    unjudged = tuple(item for item in diagnosis.cannot_tell if not item.kinds or item.kinds & set(kinds))
    diagnosis = replace(diagnosis, cannot_tell=unjudged, asked_kinds=tuple(sorted(kinds)))
    bad = [finding for finding in diagnosis.findings if finding.severity >= Severity.WARNING]
    kept_bad = [finding for finding in kept if finding.severity >= Severity.WARNING]
    if len(bad) == len(kept_bad):
        return replace(diagnosis, findings=kept)
    cause = None
    if kept_bad:
        outcome = outcome_of(kept, diagnosis.curves, "", measured=False)
        verdict = verdict_of(outcome, kept, diagnosis.curves, diagnosis.points)
        deciding = deciding_of(outcome, explainable(kept))
        cause = None if deciding is None else deciding.cause
    else:
        outcome = "not_found"
        steps = diagnosis.steps
        where = "" if steps is None else f" in {steps[1] - steps[0] + 1:,} {diagnosis.unit}s"
        nouns = (noun_of(kind).removeprefix("a ").removeprefix("an ") for kind in sorted(kinds))
        none = f"no {' or '.join(nouns)}{where}"
        mild = f"no warning{where}, only {listed(finding.kind for finding in kept)} (INFO)" if kept else ""
        verdict = f"Not found: {mild or none}. Other findings: {listed(finding.kind for finding in bad)}."
    remedies = remedies_of(kept, cause, outcome)
    return replace(diagnosis, findings=kept, outcome=outcome, verdict=verdict, cause=cause, remedies=remedies)
