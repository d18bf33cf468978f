"""Parameters that the runs cannot separate, because they move together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.parameters.features import Feature

MIN_CORRELATION = 0.9
"""Rank correlation of two numbers from which on a warning is given."""
MAX_WARNINGS = 5
"""Number of pairs of features that are named at most."""


def group_equivalent(features: Sequence[Feature], settings: int) -> list[list[Feature]]:
    """Group features that always change together; numbers come first in a group, because they can be ordered.

    ``settings`` is the number of different settings: features of which hardly any two settings share a value change
    together by chance.
    """
    groups: list[list[Feature]] = []
    group_of: dict[bytes, list[Feature]] = {}
    for feature in features:
        keys = list(_keys(feature, settings))
        group = next((group_of[key] for key in keys if key in group_of), None)
        if group is None:
            group = []
            groups.append(group)
        group.append(feature)
        for key in keys:
            group_of.setdefault(key, group)
    return [sorted(group, key=lambda feature: not feature.numeric) for group in groups]


def warnings_about(groups: Sequence[Sequence[Feature]], named: Sequence[Feature]) -> list[str]:
    """Warn about parameters that move with a named one."""
    names = {feature.name for feature in named}
    warnings = [
        f"{' and '.join(sorted(feature.name for feature in group))} change together in all of these runs: vary them "
        "separately to see which one matters."
        for group in groups
        if len(group) > 1 and group[0].name in names
    ]
    for one, (other, *_) in product(named, groups):
        if other.name in names or not (one.numeric and other.numeric):
            continue
        correlation = rank_correlation(one.values, other.values)
        if correlation is not None and abs(correlation) >= MIN_CORRELATION:
            warnings.append(
                f"{one.name} and {other.name} are correlated (rank correlation {correlation:.2f}): an association "
                "with one may come from the other."
            )
    more = len(warnings) - MAX_WARNINGS
    return warnings if more <= 0 else [*warnings[:MAX_WARNINGS], f"{more} more such pairs."]


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Spearman's correlation over the runs that have both; None for fewer than three, or where one is constant."""
    known = ~(np.isnan(one) | np.isnan(other))
    one, other = one[known], other[known]
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    correlation = float(stats.spearmanr(one, other).statistic)
    return correlation if math.isfinite(correlation) else None


def _keys(feature: Feature, settings: int) -> Iterator[bytes]:
    """What is equal for two features that change together: their order, rising or falling, and which runs are alike."""
    known = ~np.isnan(feature.values)
    if feature.numeric:
        ranks = np.zeros(len(known))
        ranks[known] = stats.rankdata(feature.values[known])
        reversed_ranks = np.where(known, known.sum() + 1 - ranks, 0.0)
        yield b"order" + min(ranks.tobytes(), reversed_ranks.tobytes())
    _, first, alike = np.unique(np.where(known, feature.values, -np.inf), return_index=True, return_inverse=True)
    if len(first) <= settings // 2 or not feature.numeric:
        yield b"alike" + first[alike.reshape(-1)].tobytes()
