"""Narrows a diagnosis down to some kinds of findings.

In: a `Diagnosis` and the kinds that were asked for. Out: one that says nothing that rests on other kinds. Guarantees:
where nothing above INFO is hidden, the run's verdict stands; a run whose trouble is hidden is never called healthy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from mlflow_stability.diagnosis.advice import remedies_of
from mlflow_stability.diagnosis.causes.causes import explainable
from mlflow_stability.diagnosis.verdict import deciding_of, listed, noun_of, outcome_of, verdict_of
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity


def only_kinds(diagnosis: Diagnosis, kinds: Collection[str]) -> Diagnosis:
    """The diagnosis as far as these kinds go; without any, all of it."""
    if not kinds:
        return diagnosis
    kept = tuple(each for each in diagnosis.findings if each.kind in kinds)
    unjudged = tuple(each for each in diagnosis.cannot_tell if not each.kinds or each.kinds & set(kinds))
    diagnosis = replace(diagnosis, cannot_tell=unjudged, asked_kinds=tuple(sorted(kinds)))
    bad, kept_bad = _bad(diagnosis.findings), _bad(kept)
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
        none = f"no {' or '.join(map(_plainly, sorted(kinds)))}{_where(diagnosis)}"
        mild = f"no warning{_where(diagnosis)}, only {listed(each.kind for each in kept)} (INFO)" if kept else ""
        verdict = f"Not found: {mild or none}. Other findings: {listed(each.kind for each in bad)}."
    remedies = remedies_of(kept, cause, outcome)
    return replace(diagnosis, findings=kept, outcome=outcome, verdict=verdict, cause=cause, remedies=remedies)


def _plainly(kind: str) -> str:
    """``nan_detected`` as in "no NaN found": "NaN"."""
    return noun_of(kind).removeprefix("a ").removeprefix("an ")


def _where(diagnosis: Diagnosis) -> str:
    """How much was looked at: `` in 800 steps``."""
    if diagnosis.steps is None:
        return ""
    first, last = diagnosis.steps
    return f" in {last - first + 1:,} {diagnosis.unit}s"


def _bad(episodes: Sequence[Finding]) -> list[Finding]:
    return [each for each in episodes if each.severity >= Severity.WARNING]
