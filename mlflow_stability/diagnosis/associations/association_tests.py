"""Permutation log-rank tests for the association of a parameter with instability, and Holm's correction.

The statistic is the log-rank test for a trend (Tarone 1975) within strata: at each step at which trouble begins, the
ranks of the troubled runs are compared with those of all runs still observed. When all runs were observed for long
enough, this is the test of van Elteren (1960), and without strata that of Mann and Whitney. p-values come from
permuting the parameter within strata, so that few runs, ties and rare values keep the stated level. Guarantees: no
p-value from fewer than three runs a side; the same runs give the same p-value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.parameters.exposure import Watched
from mlflow_stability.diagnosis.parameters.features import MOST_LEVELS, Feature


@dataclass(frozen=True, slots=True)
class PermutationConfig:
    """How exactly the p-values are computed."""

    min_runs: int = 3
    """Runs on each side of a comparison below which there is no p-value."""
    min_permutations: int = 1000
    usual_permutations: int = 2000
    max_permutations: int = 20_000
    permutations_per_test: int = 200
    """For rare values: permutations for each test that is corrected for."""
    max_values_at_once: int = 2_000_000
    max_values: int = 20_000_000
    enough_as_extreme: int = 20
    """Permutations at least as extreme as the data, after which the p-value is known well enough."""
    unremarkable_p: float = 0.1
    """From this asymptotic p-value on, nothing is permuted."""
    rare: int = 10
    """Values with fewer runs are always judged by permutations."""
    common: int = 100
    """From this many runs on, the asymptotic p-value is exact enough."""
    seed: int = 1975
    stratum_settings: int = 12
    """About the number of settings in each stratum."""


CONFIG = PermutationConfig()


@dataclass(frozen=True, slots=True, eq=False)
class _LogRank:
    """The log-rank test of many columns of numbers at once, over runs that are sorted by stratum and time."""

    begins: NDArray[np.int64]
    """For each step at which trouble begins, the first run still observed."""
    ends: NDArray[np.int64]
    """The run after the last of its stratum."""
    troubled: NDArray[np.int64]
    """The troubled runs, step after step."""
    first: NDArray[np.int64]
    """For each step the place of its first run in `troubled`."""
    strata: NDArray[np.int64]
    """For each stratum with trouble the place of its first step."""
    alone: NDArray[np.bool_]
    """Which of these strata have enough runs of both kinds for a test of their own."""

    def p_values(self, columns: NDArray[np.float64], *, pooled: bool = False) -> NDArray[np.float64]:
        """Asymptotic p-values, one for each row of ``columns``.

        Unless ``pooled``, also test the most significant stratum alone: a missing warm-up, for example, may matter only
        at high learning rates.
        """
        excess, variance = self._scores(columns)
        together = _two_sided(excess.sum(axis=1), variance.sum(axis=1))
        if pooled or len(self.strata) < 2 or not self.alone.any():
            return together
        best = _two_sided(excess[:, self.alone], variance[:, self.alone]).min(axis=1)
        return np.asarray(np.minimum(1.0, 2 * np.minimum(together, int(self.alone.sum()) * best)))

    def _scores(self, columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        at_risk = self.ends - self.begins
        count = np.diff(np.append(self.first, len(self.troubled)))
        mean = self._sums_at_risk(columns) / at_risk
        spread = np.maximum(self._sums_at_risk(columns**2) / at_risk - mean**2, 0.0)
        excess = np.add.reduceat(columns[:, self.troubled], self.first, axis=1) - count * mean
        variance = spread * count * (at_risk - count) / np.maximum(at_risk - 1, 1)
        variance[spread < 1e-12] = 0.0
        return np.add.reduceat(excess, self.strata, axis=1), np.add.reduceat(variance, self.strata, axis=1)

    def _sums_at_risk(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.zeros((len(columns), columns.shape[1] + 1))
        np.cumsum(columns, axis=1, out=sums[:, 1:])
        return np.asarray(sums[:, self.ends] - sums[:, self.begins])


def _two_sided(excess: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
    deviations = np.abs(excess) / np.sqrt(np.where(variance > 0, variance, np.inf))
    return np.asarray(2 * stats.norm.sf(deviations))


def _log_rank(
    steps: NDArray[np.float64], troubled: NDArray[np.bool_], strata: NDArray[np.int64]
) -> tuple[NDArray[np.int64], _LogRank]:
    """Return the order by stratum and time, and the test of columns in this order."""
    order = np.lexsort((steps, strata))
    steps, troubled, strata = steps[order], troubled[order], strata[order]
    new = np.append(True, (np.diff(steps) != 0) | (np.diff(strata) != 0))
    tied_from = np.maximum.accumulate(np.where(new, np.arange(len(steps)), 0))
    places = np.flatnonzero(troubled)
    begins, first = np.unique(tied_from[places], return_index=True)
    stratum = strata[begins]
    names, starts = np.unique(stratum, return_index=True)
    unstable = np.array([int(troubled[strata == name].sum()) for name in names])
    stable = np.array([int((strata == name).sum()) for name in names]) - unstable
    ends = np.searchsorted(strata, stratum, side="right").astype(np.int64)
    return order, _LogRank(begins, ends, places, first, starts, np.minimum(unstable, stable) >= CONFIG.min_runs)


@dataclass(frozen=True, slots=True, eq=False)
class _PermutationTest:
    """Ranks of one parameter over the runs that have it; all arrays are in the order of `log_rank`."""

    ranks: NDArray[np.float64]
    """One row for each column that is tested."""
    log_rank: _LogRank
    units: NDArray[np.int64]
    """Runs with the same number are permuted together."""
    strata: NDArray[np.int64]
    rarest: int
    """Number of troubled runs, of other runs, or of runs without the usual value, whichever is smallest."""

    def p_value(self, tests: int) -> float:
        count, runs = self.ranks.shape
        stratified = bool(np.any(self.strata != self.strata[0]))
        single = len(np.unique(self.units)) == runs
        observed = float(min(self.log_rank.p_values(column[None, :])[0] for column in self.ranks))
        asymptotic: float = min(1.0, observed * count)
        if asymptotic >= CONFIG.unremarkable_p or (single and not stratified and self.rarest >= CONFIG.common):
            return asymptotic
        rare = not single or self.rarest < CONFIG.rare
        wanted = max(CONFIG.usual_permutations, CONFIG.permutations_per_test * tests if rare or stratified else 0)
        wanted = min(CONFIG.max_permutations, wanted, CONFIG.max_values // (runs * count))
        wanted = max(CONFIG.min_permutations, wanted)
        as_extreme = done = 0
        generator = np.random.default_rng(CONFIG.seed)
        while done < wanted and as_extreme < CONFIG.enough_as_extreme:
            chunk = min(wanted - done, max(1, CONFIG.max_values_at_once // runs))
            permuted = self._permutations(generator, chunk)
            best = np.min([self.log_rank.p_values(column[permuted]) for column in self.ranks], axis=0)
            as_extreme += int((best <= observed * (1 + 1e-9)).sum())
            done += chunk
        p: float = (as_extreme + 1) / (done + 1)
        if as_extreme or rare:
            return p
        # No permutation comes close: the asymptotic value reaches further than 1 / permutations.
        pooled = min(self.log_rank.p_values(column[None, :], pooled=True)[0] for column in self.ranks)
        return float(min(p, pooled * count * (2 if stratified else 1)))

    def _permutations(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Rows of run numbers: whole units change places within their stratum."""
        _, example, unit = np.unique(self.units, return_index=True, return_inverse=True)
        # Units are numbered by stratum, so sorting by stratum plus a fraction permutes within strata.
        keys = self.strata[example] + generator.random((count, len(example)))
        return np.asarray(example[np.argsort(keys, axis=1)][:, unit.reshape(-1)])


def p_value_of(
    feature: Feature,
    watched: Watched,
    strata: NDArray[np.int64] | None = None,
    *,
    by_setting: bool = False,
    tests: int = 1,
) -> float | None:
    """Return the p-value of the association of ``feature`` with trouble; None for too few runs.

    ``by_setting`` permutes whole settings, so that repetitions of one setting are not independent evidence. ``tests``
    is the number of p-values that are corrected for each other.
    """
    strata = np.zeros(len(watched.troubled), np.int64) if strata is None else strata
    units = watched.settings if by_setting else np.arange(len(strata), dtype=np.int64)
    questions = _questions(feature)
    built = [_permutation_test(columns, watched, units, strata) for columns in questions]
    p_values = [test.p_value(tests * len(questions)) for test in built if test is not None]
    return min(1.0, len(p_values) * min(p_values)) if p_values else None


def _questions(feature: Feature) -> list[list[NDArray[np.float64]]]:
    """Columns for each way in which a parameter can matter: its size, whether it is set, one of its levels."""
    if not feature.numeric:
        levels = range(1 if len(feature.levels) == 2 else 0, len(feature.levels))
        return [[(feature.values == place).astype(np.float64) for place in levels]]
    absent = feature.absent.astype(np.float64)
    if np.isnan(feature.values).any():
        return [[feature.values], [absent]]
    return [[feature.values, absent]]


def _permutation_test(
    columns: list[NDArray[np.float64]], watched: Watched, units: NDArray[np.int64], strata: NDArray[np.int64]
) -> _PermutationTest | None:
    known = ~np.isnan(columns[0])
    troubled, steps = watched.troubled[known], watched.steps[known]
    unstable, stable = int(troubled.sum()), int((~troubled).sum())
    if unstable < CONFIG.min_runs or (np.ptp(steps) == 0 and stable < CONFIG.min_runs):
        return None
    varying, rarest = [], [unstable, stable]
    for column in (each[known] for each in columns):
        counts = np.unique(column, return_counts=True)[1]
        if len(counts) > 2 or (len(counts) == 2 and counts.min() >= CONFIG.min_runs):
            varying.append(column)
            rarest.append(len(column) - int(counts.max()))
    if not varying:
        return None
    order, log_rank = _log_rank(steps, troubled, strata[known])
    sorted_strata = strata[known][order]
    own = np.unique(np.stack([sorted_strata, units[known][order]]), axis=1, return_inverse=True)[1].reshape(-1)
    ranks = np.stack([_ranks(column[order], sorted_strata) for column in varying])
    return _PermutationTest(ranks, log_rank, own, sorted_strata, min(rarest))


def _ranks(column: NDArray[np.float64], strata: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ranks within each stratum, from 0 to 1."""
    ranks = np.empty(len(column))
    for stratum in np.unique(strata):
        here = strata == stratum
        ranks[here] = stats.rankdata(column[here]) / (here.sum() + 1)
    return ranks


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


def corrected(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of one family of tests (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, scaled))
    return [float(p) for p in adjusted]
