"""Narrows a diagnosis down to some kinds of findings.

In: a `Diagnosis` and the kinds that were asked for. Out: one that says nothing that rests on other kinds. Guarantees:
where nothing above INFO is hidden, the run's verdict stands; a run whose trouble is hidden is never called healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from mlflow_stability.diagnosis.advice import remedies_of
from mlflow_stability.diagnosis.causes.causes import explainable
from mlflow_stability.diagnosis.verdict import deciding_of, outcome_of, verdict_of
from mlflow_stability.vocabulary.result import Diagnosis, Episode, Severity


def only_kinds(diagnosis: Diagnosis, kinds: Collection[str]) -> Diagnosis:
    """The diagnosis as far as these kinds go; without any, all of it."""
    kept = tuple(each for each in diagnosis.episodes if not kinds or each.kind in kinds)
    bad, kept_bad = _bad(diagnosis.episodes), _bad(kept)
    if len(bad) == len(kept_bad):
        return replace(diagnosis, episodes=kept)
    cause = None
    if kept_bad:
        outcome = outcome_of(kept, diagnosis.curves, "", measured=False)
        verdict = verdict_of(outcome, kept, diagnosis.curves, diagnosis.points)
        deciding = deciding_of(outcome, explainable(kept))
        cause = None if deciding is None else deciding.cause
    else:
        outcome = "cannot_tell"
        others = Counter(each.kind for each in bad)
        listed = ", ".join(f"{kind} ({count})" if count > 1 else kind for kind, count in others.items())
        mild = f"{' and '.join(sorted({each.kind for each in kept}))} found at INFO alone"
        found = mild if kept else f"no {' or '.join(sorted(kinds))} found"
        verdict = f"Cannot tell: {found}; findings of other kinds: {listed}."
    remedies = remedies_of(kept, cause, outcome)
    return replace(diagnosis, episodes=kept, outcome=outcome, verdict=verdict, cause=cause, remedies=remedies)


def _bad(episodes: Sequence[Episode]) -> list[Episode]:
    return [each for each in episodes if each.severity >= Severity.WARNING]
