"""Names the parameters that go with instability.

In: cards. Out: those parameters, each with counts, and what could not be told. Promised: the chance of one innocent
parameter being named is about one in a hundred, however many there are; what is named is said to go with instability,
never to cause it; too few runs are called too few.

The parameter that goes with it best is named first. From then on only runs are compared that are alike in what is named
already, so that a parameter which merely moves with a named one is not named too, and one that matters only beside it,
such as a warm-up at high learning rates, is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.association_tests import FEWEST, p_value_of, strata_of
from mlflow_stability.diagnosis.association_words import statement_of
from mlflow_stability.diagnosis.confounding import put_together, rank_correlation, warnings_about
from mlflow_stability.diagnosis.features import Feature, features_of
from mlflow_stability.diagnosis.many_tests import corrected
from mlflow_stability.diagnosis.split import best_split
from mlflow_stability.vocabulary.cohort import Association
from mlflow_stability.vocabulary.run_card import RunCard

FEWEST_RUNS = 10
"""Runs below which nothing is tested."""
UNLIKELY = 0.01
"""A parameter is named if chance makes any of the innocent ones look like this less often, after Holm's correction."""
MOST = 4
"""Named at most."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was looked at, and what of it goes with instability."""

    associations: tuple[Association, ...] = ()
    features: tuple[Feature, ...] = ()
    """Of the judged runs."""
    judged: tuple[RunCard, ...] = ()
    """The runs of which it is known whether they were unstable."""
    warnings: tuple[str, ...] = ()
    cannot_tell: tuple[str, ...] = ()


def associations_of(cards: Sequence[RunCard]) -> Found:
    """The parameters that go with instability."""
    judged = tuple(card for card in cards if card.unstable is not None)
    outcome = np.array([bool(card.unstable) for card in judged], bool)
    features, left_out = features_of(judged)
    few = _too_few(len(judged), int(outcome.sum()), len(features))
    if few:
        return Found((), tuple(features), judged, (), (few,))
    groups = put_together(features)
    named = _named(groups, outcome)
    warnings = (*warnings_about(groups), *_explained_away(groups, named, outcome))
    return Found(tuple(each for each, _ in named), tuple(features), judged, warnings, tuple(left_out))


def _too_few(runs: int, unstable: int, features: int) -> str:
    if runs < FEWEST_RUNS or min(unstable, runs - unstable) < FEWEST:
        return (
            f"Which parameter goes with instability: too few runs to tell; of {runs} that can be judged {unstable} "
            f"were unstable, and {FEWEST_RUNS} are needed with {FEWEST} of either kind."
        )
    return "" if features else "Which parameter goes with instability: the runs differ in none."


def _named(groups: list[list[Feature]], outcome: NDArray[np.bool_]) -> list[tuple[Association, Feature]]:
    named: list[tuple[Association, Feature]] = []
    left = list(groups)
    while left and len(named) < MOST:
        beside = [feature for _, feature in named]
        strata = strata_of(beside, len(outcome)) if beside else None
        p_values = [p_value_of(group[0], outcome, strata) for group in left]
        tested = [place for place, each in enumerate(p_values) if each is not None]
        if not tested:
            break
        after = dict(zip(tested, corrected([p_values[each] or 0.0 for each in tested]), strict=True))
        best = min(tested, key=lambda place: after[place])
        if after[best] >= UNLIKELY:
            break
        group = left.pop(best)
        named.append((_association(group, outcome, after[best], beside), group[0]))
    return named


def _association(
    group: list[Feature], outcome: NDArray[np.bool_], p_value: float, beside: list[Feature]
) -> Association:
    feature = group[0]
    split = best_split(feature, outcome)
    return Association(
        tuple(each.name for each in group),
        statement_of(feature, outcome, beside),
        p_value,
        rank_correlation(feature.values, outcome.astype(np.float64)) if feature.numeric else None,
        tuple(each.name for each in beside),
        split.limit if feature.numeric and split is not None else None,
    )


def _explained_away(
    groups: list[list[Feature]], named: list[tuple[Association, Feature]], outcome: NDArray[np.bool_]
) -> list[str]:
    """What would have been named alone, and is not beside what is."""
    taken = {feature.name for _, feature in named}
    if not taken:
        return []
    alone = {group[0].name: p_value_of(group[0], outcome) for group in groups}
    known = {name: p for name, p in alone.items() if p is not None}
    after = dict(zip(known, corrected(list(known.values())), strict=True))
    others = ", ".join(sorted(taken))
    return [
        f"{name} goes with instability too, but no longer among runs that are alike in {others}."
        for name, p in after.items()
        if name not in taken and p < UNLIKELY
    ]
