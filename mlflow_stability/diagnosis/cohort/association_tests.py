"""Permutation tests for the association of a parameter with instability, and Holm's correction.

Each run has a score: whether it became unstable, minus the number of times that was to be expected in the steps for
which it was observed (a martingale residual). The sum of scores, weighted by the ranks of a parameter, is the log-rank
test for a trend (Tarone 1975); where all runs were observed for long enough, it is the rank-sum test. p-values come
from `scipy.stats.permutation_test`, so that few runs, ties and rare values keep the stated level; those of strata are
combined by Fisher's method. Guarantees: no p-value from fewer than three runs a side; the same runs give the same
p-value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.cohort.features import MOST_LEVELS, Exposure, Feature


@dataclass(frozen=True, slots=True)
class PermutationConfig:
    min_runs: int = 3  # runs on each side of a comparison below which there is no p-value
    usual_permutations: int = 2000
    max_permutations: int = 20_000
    permutations_per_test: int = 200  # for rare values: permutations for each test that is corrected for
    max_values_at_once: int = 2_000_000
    max_values: int = 20_000_000
    unremarkable_p: float = 0.1  # from this asymptotic p-value on, nothing is permuted
    rare: int = 10  # values with fewer runs are always judged by permutations
    common: int = 100  # from this many runs on, the asymptotic p-value is exact enough
    seed: int = 1975
    stratum_settings: int = 12  # about the number of settings in each stratum


CONFIG = PermutationConfig()


def p_value_of(
    feature: Feature,
    exposure: Exposure,
    strata: NDArray[np.int64] | None = None,
    *,
    by_setting: bool = False,
    tests: int = 1,
) -> float | None:
    """Return the p-value of the association of ``feature`` with trouble; None for too few runs.

    ``by_setting`` permutes whole settings, so that repetitions of one setting are not independent evidence. ``tests``
    is the number of p-values that are corrected for each other.
    """
    strata = np.zeros(len(exposure.troubled), np.int64) if strata is None else strata
    units = exposure.settings if by_setting else np.arange(len(strata), dtype=np.int64)
    questions = _questions(feature)
    p_values = []
    for columns in questions:
        p = _stratified_p_value(columns, exposure, units, strata, tests * len(questions))
        p_values += [] if p is None else [p]
    return min(1.0, len(p_values) * min(p_values)) if p_values else None


def _questions(feature: Feature) -> list[list[NDArray[np.float64]]]:
    """Return columns for each way a parameter can matter: its size, whether it is set, one of its levels."""
    if not feature.numeric:
        levels = range(1 if len(feature.levels) == 2 else 0, len(feature.levels))
        return [[(feature.values == place).astype(np.float64) for place in levels]]
    absent = feature.absent.astype(np.float64)
    if np.isnan(feature.values).any():
        return [[feature.values], [absent]]
    return [[feature.values, absent]]


def _stratified_p_value(
    columns: Sequence[NDArray[np.float64]],
    exposure: Exposure,
    units: NDArray[np.int64],
    strata: NDArray[np.int64],
    tests: int,
) -> float | None:
    is_set = ~np.isnan(columns[0])
    troubled, steps = exposure.troubled[is_set], exposure.steps[is_set]
    units, strata = units[is_set], strata[is_set]
    rarest = [int(troubled.sum()), int((~troubled).sum())]
    if rarest[0] < CONFIG.min_runs or (np.ptp(steps) == 0 and rarest[1] < CONFIG.min_runs):
        return None
    varying = []
    for column in (column[is_set] for column in columns):
        counts = np.unique(column, return_counts=True)[1]
        if len(counts) > 2 or (len(counts) == 2 and counts.min() >= CONFIG.min_runs):
            varying.append(column)
            rarest.append(len(column) - int(counts.max()))
    if not varying:
        return None
    names, stratum_of = np.unique(strata, return_inverse=True)
    p_values = []
    for stratum in range(len(names)):
        inside = stratum_of.reshape(-1) == stratum
        scores = _scores(steps[inside], troubled[inside])
        _, first, unit = np.unique(units[inside], return_index=True, return_inverse=True)
        table = np.stack([column[inside][first] for column in varying])
        is_plain = len(names) == 1 and len(first) == len(scores)
        sums = np.asarray(np.bincount(unit.reshape(-1), scores), np.float64)
        p = _p_value(table, sums, min(rarest) if is_plain else 0, tests)
        p_values += [] if p is None else [p]
    if len(p_values) < 2:
        return p_values[0] if p_values else 1.0
    return float(stats.combine_pvalues(p_values, method="fisher").pvalue)


def _scores(steps: NDArray[np.float64], troubled: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return for each run whether it had trouble, minus the cumulative hazard of all runs over its steps."""
    onsets, counts = np.unique(steps[troubled], return_counts=True)
    at_risk = len(steps) - np.searchsorted(np.sort(steps), onsets)
    hazard = np.append(0.0, np.cumsum(counts / at_risk))
    return np.asarray(troubled - hazard[np.searchsorted(onsets, steps, side="right")])


def _p_value(table: NDArray[np.float64], scores: NDArray[np.float64], rarest: int, tests: int) -> float | None:
    """Return the p-value of the column that goes with ``scores`` most, corrected for the number of columns.

    ``rarest`` is the number of runs on the smallest side of a comparison; 0 asks for permutations in any case.
    """
    table = table[np.ptp(table, axis=1) > 0]
    if not len(table) or np.ptp(scores) < 1e-9:
        return None
    ranks = stats.zscore(stats.rankdata(table, axis=1), axis=1)
    deviations = np.abs(ranks @ stats.zscore(scores)) * math.sqrt(len(scores) - 1) / len(scores)
    asymptotic = min(1.0, len(table) * 2 * float(stats.norm.sf(deviations.max())))
    if asymptotic >= CONFIG.unremarkable_p or rarest >= CONFIG.common:
        return asymptotic

    def strongest(permuted: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return np.asarray(np.abs(np.moveaxis(permuted, axis, -1) @ ranks.T).max(axis=-1))

    is_rare = rarest < CONFIG.rare
    wanted = max(CONFIG.usual_permutations, CONFIG.permutations_per_test * tests if is_rare else 0)
    result = stats.permutation_test(
        (scores,),
        strongest,
        permutation_type="pairings",
        vectorized=True,
        n_resamples=min(CONFIG.max_permutations, wanted, CONFIG.max_values // len(scores)),
        batch=max(1, CONFIG.max_values_at_once // len(scores)),
        alternative="greater",
        random_state=CONFIG.seed,
    )
    # Where no permutation comes close, the asymptotic value reaches further than 1 / permutations.
    is_extreme = result.statistic > result.null_distribution.max() * (1 + 1e-9)
    return min(float(result.pvalue), asymptotic) if is_extreme and not is_rare else float(result.pvalue)


def strata_of(features: list[Feature], settings: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each run; runs with the same number are alike in ``features``."""
    strata = np.zeros(len(settings), np.int64)
    bins = max(2, int((len(np.unique(settings)) / CONFIG.stratum_settings) ** (1 / max(1, len(features)))))
    for feature in features:
        strata = strata * (bins + MOST_LEVELS) + _bins_of(feature, bins)
    return np.asarray(np.unique(strata, return_inverse=True)[1], np.int64).reshape(-1)


def _bins_of(feature: Feature, bins: int) -> NDArray[np.int64]:
    if not feature.numeric:
        return feature.values.astype(np.int64)
    values = np.where(np.isnan(feature.values), -np.inf, feature.values)
    different = np.unique(values)
    if len(different) <= bins:
        return np.asarray(np.searchsorted(different, values), np.int64)
    ranks = stats.rankdata(values, method="average") - 0.5
    return np.asarray(np.minimum(ranks * bins / len(values), bins - 1), np.int64)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of one family of tests (Holm 1979), in the order given; scipy has no such function."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, scaled))
    return [float(p) for p in adjusted]


def rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """Return Spearman's correlation over the runs that have both; None for fewer than three, or a constant column."""
    both = ~(np.isnan(first) | np.isnan(second))
    first, second = first[both], second[both]
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    correlation = float(stats.spearmanr(first, second).statistic)
    return correlation if math.isfinite(correlation) else None
