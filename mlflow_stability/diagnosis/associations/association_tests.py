"""Tests whether a parameter goes with trouble, among all runs or among runs that are alike in other parameters.

In: a feature, the outcome of each run, and which runs are alike. Out: a p-value. The test is the log-rank test for a
trend (Tarone 1975): at each moment at which trouble begins, the ranks of the runs where it does are held against those
of all that are still watched, within each stratum alone. Where every run was watched for long enough it is that of van
Elteren (1960), and without strata that of Mann and Whitney. Its p-value comes from shuffling the parameter among the
runs, or among whole settings, in each stratum, so that few runs, ties and rare values are no trouble; where nothing is
rare and no shuffling comes close, from the normal distribution. Guarantees: no p-value from fewer than three runs a
side; the same runs give the same p-value.

Corrects p-values for how many questions were asked.

In: the p-values of one family of tests. Out: those of Holm (1979), which bound the chance of a single false finding
among all of them, whatever hangs together with what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.associations.logrank import Moments, moments_of
from mlflow_stability.diagnosis.parameters.exposure import Watched
from mlflow_stability.diagnosis.parameters.features import MOST_LEVELS, Feature

FEWEST = 3
"""Runs on each side of a comparison below which there is no p-value."""
SHUFFLES, MOST_SHUFFLES = 2000, 20_000
PER_TEST = 200
"""Of rare things so many for each test that is corrected for."""
AT_ONCE, IN_ALL = 2_000_000, 20_000_000
"""Values that are shuffled."""
ENOUGH = 20
"""Shufflings that look as good, after which the p-value is known well enough."""
UNREMARKABLE = 0.1
"""From this p-value of the normal distribution on nothing is shuffled."""
RARE, COMMON = 10, 100
"""Fewer of a kind than the first are rare; of so many as the second sums are spread normally for certain."""
SEED = 1975
"""Of the shuffling's own random numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """Columns of a feature over the runs that have them."""

    columns: NDArray[np.float64]
    moments: Moments
    units: NDArray[np.int64]
    strata: NDArray[np.int64]
    """All in the order of the moments."""
    fewest: int
    """How many there are of the rarest thing: of troubled runs, of others, of values that are not the usual one."""

    @property
    def single(self) -> bool:
        """Whether each run is shuffled on its own."""
        return bool(len(np.unique(self.units)) == self.columns.shape[1])

    @property
    def stratified(self) -> bool:
        return bool(np.any(self.strata != self.strata[0]))


def p_value_of(
    feature: Feature,
    watched: Watched,
    strata: NDArray[np.int64] | None = None,
    *,
    by_setting: bool = False,
    tests: int = 1,
) -> float | None:
    """How likely chance alone makes it go so well with trouble; None where there are too few runs to tell.

    ``by_setting`` shuffles whole settings instead of runs: then repetitions of one setting are no evidence of their
    own. ``tests``: how many such p-values are corrected for each other.
    """
    alike = np.zeros(len(watched.troubled), np.int64) if strata is None else strata
    units = watched.settings if by_setting else np.arange(len(alike), dtype=np.int64)
    sides = _sides(feature)
    asked = [each for side in sides if (each := _asked(side, watched, units, alike)) is not None]
    found = [_p_value(each, tests * len(sides)) for each in asked]
    return min(1.0, len(found) * min(found)) if found else None


def _sides(feature: Feature) -> list[list[NDArray[np.float64]]]:
    """The ways in which a parameter can matter: by its size, by being there at all, by one of its levels."""
    if not feature.numeric:
        levels = range(1 if len(feature.levels) == 2 else 0, len(feature.levels))
        return [[(feature.values == place).astype(np.float64) for place in levels]]
    absent = feature.absent.astype(np.float64)
    if np.isnan(feature.values).any():
        return [[feature.values], [absent]]
    return [[feature.values, absent]]


def _asked(
    columns: list[NDArray[np.float64]], watched: Watched, units: NDArray[np.int64], strata: NDArray[np.int64]
) -> _Asked | None:
    known = ~np.isnan(columns[0])
    troubled, steps = watched.troubled[known], watched.steps[known]
    if troubled.sum() < FEWEST or (np.ptp(steps) == 0 and len(troubled) - troubled.sum() < FEWEST):
        return None
    chosen = [column[known] for column in columns if _enough(column[known])]
    if not chosen:
        return None
    order, moments = moments_of(steps, troubled, strata[known], FEWEST)
    alike = strata[known][order]
    own = np.unique(np.stack([alike, units[known][order]]), axis=1, return_inverse=True)[1].reshape(-1)
    ranked = np.stack([_ranks(column[order], alike) for column in chosen])
    others = [len(column) - int(np.unique(column, return_counts=True)[1].max()) for column in chosen]
    fewest = min(int(troubled.sum()), int((~troubled).sum()), *others)
    return _Asked(ranked, moments, own, alike, fewest)


def _enough(column: NDArray[np.float64]) -> bool:
    counts = np.unique(column, return_counts=True)[1]
    return len(counts) > 2 or (len(counts) == 2 and int(counts.min()) >= FEWEST)


def _ranks(column: NDArray[np.float64], strata: NDArray[np.int64]) -> NDArray[np.float64]:
    """Within each stratum, from 0 to 1."""
    found = np.empty(len(column))
    for stratum in np.unique(strata):
        here = strata == stratum
        found[here] = stats.rankdata(column[here]) / (here.sum() + 1)
    return found


def _p_value(asked: _Asked, tests: int) -> float:
    chance = float(min(asked.moments.chance(column[None, :])[0] for column in asked.columns))
    plain = min(1.0, chance * len(asked.columns))
    if plain >= UNREMARKABLE:
        return plain
    if asked.single and not asked.stratified and asked.fewest >= COMMON:
        return plain
    rare = not asked.single or asked.fewest < RARE
    runs = asked.columns.shape[1]
    wanted = min(MOST_SHUFFLES, max(SHUFFLES, PER_TEST * tests if rare or asked.stratified else 0))
    wanted = max(1000, min(wanted, IN_ALL // (runs * len(asked.columns))))
    as_good = done = 0
    generator = np.random.default_rng(SEED)
    while done < wanted and as_good < ENOUGH:
        count = min(wanted - done, max(1, AT_ONCE // runs))
        taken = _shuffled(asked, generator, count)
        best = np.min([asked.moments.chance(column[taken]) for column in asked.columns], axis=0)
        as_good += int((best <= chance * (1 + 1e-9)).sum())
        done += count
    found = (as_good + 1) / (done + 1)
    if as_good or rare:
        return found
    together = min(asked.moments.chance_together(column[None, :])[0] for column in asked.columns)
    return float(min(found, together * len(asked.columns) * (2 if asked.stratified else 1)))


def _shuffled(asked: _Asked, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """For each shuffling the run whose value each run gets: one of the same stratum, the same for a whole unit."""
    _, example, unit = np.unique(asked.units, return_index=True, return_inverse=True)
    stratum = asked.strata[example]  # units are numbered by stratum, so those of one stratum lie together
    keys = stratum + generator.random((count, len(example)))
    found: NDArray[np.int64] = example[np.argsort(keys, axis=1)][:, unit.reshape(-1)]
    return found


def strata_of(features: list[Feature], settings: NDArray[np.int64], size: int = 12) -> NDArray[np.int64]:
    """Which runs are alike in these parameters: about `size` settings or more in each stratum."""
    count = len(settings)
    strata = np.zeros(count, np.int64)
    bins = max(2, int((len(np.unique(settings)) / size) ** (1 / max(1, len(features)))))
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


def corrected(p_values: Sequence[float]) -> list[float]:
    """Each p-value as if it had been the only question, in the order given."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found = [1.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = highest
    return found
