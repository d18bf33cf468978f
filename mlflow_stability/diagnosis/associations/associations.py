"""Names the parameters that are associated with instability.

In: cards. Out: those parameters, each with counts, and what is undecided. Guarantees: the chance of one innocent
parameter being named is about one in a hundred, however many there are, and up to four in a hundred where settings were
repeated; what is named is said to be associated with instability, never to cause it; too few runs are called too few.
A run counts for as long as it was recorded.

The parameter with the strongest association is named first. From then on only runs are compared that are alike in what
is named already, so that a parameter which merely moves with a named one is not named too, and one that matters only
beside it, such as a warm-up at high learning rates, is.

Repetitions of one setting with other seeds share more than the parameter in question. So where settings were repeated,
a parameter must also stand out among settings that count once each; one that does not is told as too few settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlflow_stability.diagnosis.associations.association_phrases import statement_of
from mlflow_stability.diagnosis.associations.association_tests import FEWEST, corrected, p_value_of, strata_of
from mlflow_stability.diagnosis.associations.confounding import put_together, rank_correlation, warnings_about
from mlflow_stability.diagnosis.parameters.exposure import Watched, watched_of
from mlflow_stability.diagnosis.parameters.features import Feature, features_of
from mlflow_stability.diagnosis.parameters.split import best_split
from mlflow_stability.vocabulary.result import Association
from mlflow_stability.vocabulary.run import RunCard

FEWEST_RUNS = 10
"""Runs below which nothing is tested."""
UNLIKELY = 0.01
"""A parameter is named if chance makes any of the innocent ones look like this less often, after Holm's correction."""
UNLIKELY_OF_SETTINGS = 0.04
"""The same where each setting counts once: so often at most is an innocent one named, however alike repetitions are."""
MOST = 4
"""Named at most."""


@dataclass(frozen=True, slots=True)
class AssociationResult:
    """What was looked at, and what of it is associated with instability."""

    associations: tuple[Association, ...] = ()
    features: tuple[Feature, ...] = ()
    """Of the judged runs."""
    judged: tuple[RunCard, ...] = ()
    """The runs of which it is known whether they were unstable."""
    watched: Watched | None = None
    """Their steps and outcomes; None where they are too few to be tested."""
    undecided: bool = False
    """Whether too few runs or settings keep a parameter from being named; `cannot_tell` says which."""
    warnings: tuple[str, ...] = ()
    cannot_tell: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """Parameters that change together, and how likely chance makes them look so, corrected for all candidates."""

    group: list[Feature]
    by_run: float
    by_setting: float
    """0 where it need not be asked."""

    @property
    def named(self) -> bool:
        return self.by_run < UNLIKELY and self.by_setting < UNLIKELY_OF_SETTINGS


def associations_of(cards: Sequence[RunCard]) -> AssociationResult:
    """The parameters that are associated with instability."""
    judged = tuple(card for card in cards if card.unstable is not None)
    watched = watched_of(judged)
    features, left_out = features_of(judged)
    few = _too_few(len(judged), int(watched.troubled.sum()), len(features))
    if few:
        return AssociationResult((), tuple(features), judged, undecided=True, cannot_tell=(few,))
    groups = put_together(features, len(np.unique(watched.settings)))
    by_setting = watched.repeated and len(groups) > 1  # with one alone, its values are the settings
    first = _candidates(groups, watched, [], by_setting)
    named, rest = _named(groups, watched, first, by_setting)
    taken = [feature for _, feature in named]
    warnings = (*warnings_about(groups, taken), *_explained_away(first, taken))
    doubtful = _doubtful(rest, watched, taken)
    associations = tuple(each for each, _ in named)
    cannot_tell = (*doubtful, *left_out)
    return AssociationResult(associations, tuple(features), judged, watched, bool(doubtful), warnings, cannot_tell)


def _too_few(runs: int, unstable: int, features: int) -> str:
    if runs < FEWEST_RUNS or min(unstable, runs - unstable) < FEWEST:
        return (
            f"Parameters associated with instability: {unstable} of {runs} judged runs were unstable; at least "
            f"{FEWEST_RUNS} runs are needed, {FEWEST} of each kind."
        )
    return "" if features else "Parameters associated with instability: the runs have equal parameters."


def _candidates(
    groups: Sequence[list[Feature]], watched: Watched, beside: list[Feature], by_setting: bool
) -> list[_Candidate]:
    """Those that can be tested among runs that are alike in what is beside them, the likeliest to matter first."""
    strata = strata_of(beside, watched.settings) if beside else None
    tests = len(groups)
    p_values = [p_value_of(group[0], watched, strata, tests=tests) for group in groups]
    known = {place: p for place, p in enumerate(p_values) if p is not None}
    found = []
    for place, p in zip(known, corrected(list(known.values())), strict=True):
        again = 0.0
        if by_setting and p < UNLIKELY:
            alone = p_value_of(groups[place][0], watched, strata, by_setting=True, tests=tests)
            again = 1.0 if alone is None else min(1.0, len(known) * alone)
        found.append(_Candidate(groups[place], p, again))
    return sorted(found, key=lambda each: (not each.named, each.by_run))


def _named(
    groups: Sequence[list[Feature]], watched: Watched, first: list[_Candidate], by_setting: bool
) -> tuple[list[tuple[Association, Feature]], list[_Candidate]]:
    """What is named, and what was left to be named when nothing more was."""
    named: list[tuple[Association, Feature]] = []
    left, candidates = list(groups), first
    while candidates and candidates[0].named:
        best = candidates[0]
        beside = [feature for _, feature in named]
        named.append((_association(best, watched, beside), best.group[0]))
        left = [group for group in left if group is not best.group]
        candidates = [] if len(named) == MOST else _candidates(left, watched, [f for _, f in named], by_setting)
    return named, candidates


def _association(found: _Candidate, watched: Watched, beside: list[Feature]) -> Association:
    feature = found.group[0]
    split = best_split(feature, watched.troubled)
    return Association(
        tuple(sorted(each.name for each in found.group)),
        statement_of(feature, watched, beside),
        max(found.by_run, found.by_setting),
        rank_correlation(feature.values, watched.troubled.astype(np.float64)) if feature.numeric else None,
        tuple(each.name for each in beside),
        split.limit if feature.numeric and split is not None else None,
    )


def _explained_away(alone: Sequence[_Candidate], named: Sequence[Feature]) -> list[str]:
    """What would have been named alone, and is not beside what is."""
    taken = {feature.name for feature in named}
    others = ", ".join(sorted(taken))
    return [
        f"{each.group[0].name} is associated with instability as well, but not among runs with similar {others}."
        for each in alone
        if taken and each.named and each.group[0].name not in taken
    ]


def _doubtful(candidates: Sequence[_Candidate], watched: Watched, named: Sequence[Feature]) -> list[str]:
    """What stands out among runs, and not among settings."""
    count = len(np.unique(watched.settings))
    return [
        f"Association of {' / '.join(sorted(part.name for part in each.group))} with instability"
        f"{f' beside {listed}' if (listed := ', '.join(one.name for one in named)) else ''}: "
        f"{statement_of(each.group[0], watched, named).removesuffix('.')}; only {count} different settings, too few to "
        "separate it from other differences."
        for each in [each for each in candidates if each.by_run < UNLIKELY][:MOST]
    ]
