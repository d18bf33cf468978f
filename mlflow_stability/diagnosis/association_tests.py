"""Tests whether a parameter goes with an outcome, among all runs or among runs that are alike in other parameters.

In: a feature, the outcome of each run, and which runs are alike. Out: a p-value. The test is van Elteren's (1960):
ranks are compared within each stratum alone; with one stratum it is Mann and Whitney's, for two levels Cochran, Mantel
and Haenszel's. Small tables without strata are tested exactly. Promised: no p-value from fewer than three runs a side.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.features import MOST_LEVELS, Feature

FEWEST = 3
"""Runs on each side of a comparison below which there is no p-value."""


def p_value_of(feature: Feature, outcome: NDArray[np.bool_], strata: NDArray[np.int64] | None = None) -> float | None:
    """How likely chance alone makes it go so well with the outcome; None where there are too few runs to tell."""
    found = [each for column in _columns(feature) if (each := _p_value(column, outcome, strata)) is not None]
    return min(1.0, len(found) * min(found)) if found else None


def _columns(feature: Feature) -> list[NDArray[np.float64]]:
    """The ways in which a parameter can matter: by its size, by being there at all, by one of its levels."""
    if feature.numeric:
        absent = feature.absent
        apart = [absent.astype(np.float64)] if FEWEST <= absent.sum() <= len(absent) - FEWEST else []
        return [feature.values, *apart]
    if len(feature.levels) == 2:
        return [feature.values]
    return [(feature.values == place).astype(np.float64) for place in range(len(feature.levels))]


def _p_value(column: NDArray[np.float64], outcome: NDArray[np.bool_], strata: NDArray[np.int64] | None) -> float | None:
    known = ~np.isnan(column)
    column, outcome = column[known], outcome[known]
    if min(outcome.sum(), len(outcome) - outcome.sum()) < FEWEST:
        return None
    different = np.unique(column)
    if len(different) < 2:
        return None
    if len(different) == 2:
        more = column == different[1]
        if min(more.sum(), len(more) - more.sum()) < FEWEST:
            return None
        if strata is None:
            table = [
                [np.sum(more & outcome), np.sum(more & ~outcome)],
                [np.sum(~more & outcome), np.sum(~more & ~outcome)],
            ]
            return float(stats.fisher_exact(table).pvalue)
    if strata is None:
        return float(stats.mannwhitneyu(column[outcome], column[~outcome], method="auto").pvalue)
    return _within(column, outcome, strata[known])


def _within(column: NDArray[np.float64], outcome: NDArray[np.bool_], strata: NDArray[np.int64]) -> float | None:
    """Ranks compared within each stratum alone: in all of them taken together, and in the one where it matters most.

    The latter finds what matters only beside something else, as a missing warm-up does at high learning rates.
    """
    excess = variance = 0.0
    alone = []
    for stratum in np.unique(strata):
        here = strata == stratum
        ranks, ill = stats.rankdata(column[here]), outcome[here]
        count, sick = len(ranks), int(ill.sum())
        if not 0 < sick < count:
            continue
        weight = 1 / (count + 1)
        excess += weight * float(ranks[ill].sum() - sick * (count + 1) / 2)
        spread = float(((ranks - ranks.mean()) ** 2).sum())
        variance += weight**2 * sick * (count - sick) / (count * (count - 1)) * spread
        found = _p_value(column[here], ill, None)
        alone += [found] if found is not None else []
    if variance <= 0:
        return None
    together = float(2 * stats.norm.sf(abs(excess) / math.sqrt(variance)))
    return min(1.0, 2 * min(together, len(alone) * min(alone))) if alone else together


def strata_of(features: list[Feature], count: int, size: int = 12) -> NDArray[np.int64]:
    """Which runs are alike in these parameters: about `size` runs or more in each stratum."""
    strata = np.zeros(count, np.int64)
    bins = max(2, int((count / size) ** (1 / max(1, len(features)))))
    for feature in features:
        strata = strata * (bins + MOST_LEVELS) + _binned(feature, bins)
    return np.asarray(np.unique(strata, return_inverse=True)[1], np.int64).reshape(-1)


def _binned(feature: Feature, bins: int) -> NDArray[np.int64]:
    if not feature.numeric:
        return feature.values.astype(np.int64)
    values = np.where(np.isnan(feature.values), -np.inf, feature.values)
    different = np.unique(values)
    if len(different) <= bins:
        return np.asarray(np.searchsorted(different, values), np.int64)
    ranks = stats.rankdata(values, method="average") - 0.5
    return np.asarray(np.minimum(ranks * bins / len(values), bins - 1), np.int64)
