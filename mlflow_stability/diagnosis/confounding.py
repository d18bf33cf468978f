"""Finds parameters that the runs cannot tell apart, because they move together.

In: features. Out: those that are the same but for their names put together, and a warning about those that nearly are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.features import Feature

NEARLY = 0.9
"""From this rank correlation on two numbers are warned about."""
MOST_WARNINGS = 5


def put_together(features: Sequence[Feature]) -> list[list[Feature]]:
    """The features, those that always change together as one."""
    groups: list[list[Feature]] = []
    for feature in features:
        home = next((group for group in groups if _same(group[0], feature)), None)
        if home is None:
            groups.append([feature])
        else:
            home.append(feature)
    return groups


def warnings_about(groups: Sequence[Sequence[Feature]]) -> list[str]:
    """What to bear in mind when one of them is named."""
    said = [
        f"{' and '.join(each.name for each in group)} change together in all of these runs: which of them matters "
        "cannot be told."
        for group in groups
        if len(group) > 1
    ]
    for one, other in combinations([group[0] for group in groups if group[0].numeric], 2):
        correlation = rank_correlation(one.values, other.values)
        if correlation is not None and abs(correlation) >= NEARLY:
            said.append(
                f"{one.name} and {other.name} move together (rank correlation {correlation:.2f}): what goes with one "
                "goes with the other."
            )
    return said if len(said) <= MOST_WARNINGS else [*said[:MOST_WARNINGS], f"{len(said) - MOST_WARNINGS} more such."]


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Spearman's, over the runs that have both; None under three, or where one is constant."""
    known = ~(np.isnan(one) | np.isnan(other))
    one, other = one[known], other[known]
    if len(one) < 3 or len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return None
    correlation = float(stats.spearmanr(one, other).statistic)
    return correlation if math.isfinite(correlation) else None


def _same(one: Feature, other: Feature) -> bool:
    if one.numeric and other.numeric:
        if not np.array_equal(np.isnan(one.values), np.isnan(other.values)):
            return False
        correlation = rank_correlation(one.values, other.values)
        return correlation is not None and abs(correlation) > 1 - 1e-9
    first, second = (np.nan_to_num(each.values, nan=-np.inf) for each in (one, other))
    levels = len(np.unique(first))
    pairs = np.unique(np.stack([first, second]), axis=1).shape[1]
    return levels <= len(first) // 2 and levels == len(np.unique(second)) == pairs
