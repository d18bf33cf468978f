"""Finds parameters that the runs cannot tell apart, because they move together.

In: features. Out: those that are the same but for their names put together, and a warning about those that nearly are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.parameters.features import Feature

NEARLY = 0.9
"""From this rank correlation on two numbers are warned about."""
MOST_WARNINGS = 5
"""So many warnings are told."""


def put_together(features: Sequence[Feature], settings: int) -> list[list[Feature]]:
    """The features, those that always change together as one; a number first, which has an order to be tested.

    ``settings``: how many different settings there are; of values that hardly any two of them share it is no wonder
    that they change together.
    """
    groups: list[list[Feature]] = []
    home: dict[bytes, list[Feature]] = {}
    for feature in features:
        keys = list(_keys(feature, settings))
        group = next((home[key] for key in keys if key in home), None)
        if group is None:
            group = []
            groups.append(group)
        group.append(feature)
        for key in keys:
            home.setdefault(key, group)
    return [sorted(group, key=lambda each: not each.numeric) for group in groups]


def warnings_about(groups: Sequence[Sequence[Feature]], named: Sequence[Feature]) -> list[str]:
    """What to bear in mind about what is named."""
    taken = {feature.name for feature in named}
    said = [
        f"{' and '.join(sorted(each.name for each in group))} change together in all of these runs: vary them "
        "separately to see which one matters."
        for group in groups
        if len(group) > 1 and group[0].name in taken
    ]
    for one in named:
        for other in (group[0] for group in groups):
            if other.name in taken or not (one.numeric and other.numeric):
                continue
            correlation = rank_correlation(one.values, other.values)
            if correlation is not None and abs(correlation) >= NEARLY:
                said.append(
                    f"{one.name} and {other.name} are correlated (rank correlation {correlation:.2f}): an association "
                    "with one may come from the other."
                )
    return (
        said if len(said) <= MOST_WARNINGS else [*said[:MOST_WARNINGS], f"{len(said) - MOST_WARNINGS} more such pairs."]
    )


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Spearman's, over the runs that have both; None under three, or where one is constant."""
    known = ~(np.isnan(one) | np.isnan(other))
    one, other = one[known], other[known]
    if len(one) < 3 or len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return None
    correlation = float(stats.spearmanr(one, other).statistic)
    return correlation if math.isfinite(correlation) else None


def _keys(feature: Feature, settings: int) -> Iterator[bytes]:
    """What is equal for two features that change together: their order, rising or falling, and which runs are alike."""
    known = ~np.isnan(feature.values)
    if feature.numeric:
        ranks = np.zeros(len(known))
        ranks[known] = stats.rankdata(feature.values[known])
        turned = np.where(known, known.sum() + 1 - ranks, 0.0)
        yield b"order" + min(ranks.tobytes(), turned.tobytes())
    _, first, alike = np.unique(np.where(known, feature.values, -np.inf), return_index=True, return_inverse=True)
    if len(first) <= settings // 2 or not feature.numeric:
        yield b"alike" + first[alike.reshape(-1)].tobytes()
