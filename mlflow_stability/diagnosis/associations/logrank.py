"""Holds the runs in which trouble begins against those that are still watched, moment by moment.

In: for how long each run was watched, whether trouble began then, and its stratum. Out: `Moments`, which say of many
columns of numbers at once how likely chance alone makes the troubled runs stand so far out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The moments at which trouble begins, over runs that are sorted by stratum and time."""

    begins: NDArray[np.int64]
    """For each moment the first run that is still watched."""
    ends: NDArray[np.int64]
    """And the one after the last of its stratum."""
    troubled: NDArray[np.int64]
    """The troubled runs, moment after moment."""
    first: NDArray[np.int64]
    """For each moment the place of the first of them there."""
    strata: NDArray[np.int64]
    """For each stratum with trouble the place of its first moment."""
    alone: NDArray[np.bool_]
    """Which of these strata have enough of both kinds to be looked at alone."""

    @property
    def in_all(self) -> int:
        """How many runs were troubled."""
        return len(self.troubled)

    def chance(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each row, a number a run: the p-value by the normal distribution.

        Of all strata together, and of the one where it matters most: what matters only beside something else, as a
        missing warm-up does at high learning rates, is seen there alone.
        """
        excess, variance = self._scores(columns)
        together = _p(excess.sum(axis=1), variance.sum(axis=1))
        if len(self.strata) < 2 or not self.alone.any():
            return together
        best = _p(excess[:, self.alone], variance[:, self.alone]).min(axis=1)
        return np.asarray(np.minimum(1.0, 2 * np.minimum(together, int(self.alone.sum()) * best)))

    def chance_together(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same of all strata together alone."""
        excess, variance = self._scores(columns)
        return _p(excess.sum(axis=1), variance.sum(axis=1))

    def _scores(self, columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each row and stratum how far the troubled runs stand out, and the variance of that by chance."""
        left = self.ends - self.begins
        count = np.diff(np.append(self.first, self.in_all))
        mean = _between(columns, self.begins, self.ends) / left
        spread = np.maximum(_between(columns**2, self.begins, self.ends) / left - mean**2, 0.0)
        found = np.add.reduceat(columns[:, self.troubled], self.first, axis=1)
        excess = found - count * mean
        variance = spread * count * (left - count) / np.maximum(left - 1, 1)
        variance[spread < 1e-12] = 0.0
        return np.add.reduceat(excess, self.strata, axis=1), np.add.reduceat(variance, self.strata, axis=1)


def moments_of(
    steps: NDArray[np.float64], troubled: NDArray[np.bool_], strata: NDArray[np.int64], fewest: int
) -> tuple[NDArray[np.int64], Moments]:
    """The order in which the runs are to be given, and their moments; some run must be troubled."""
    order = np.lexsort((steps, strata))
    time, ill, alike = steps[order], troubled[order], strata[order]
    new = np.append(True, (np.diff(time) != 0) | (np.diff(alike) != 0))
    tied_from = np.maximum.accumulate(np.where(new, np.arange(len(time)), 0))
    places = np.flatnonzero(ill)
    begins, first = np.unique(tied_from[places], return_index=True)
    stratum = alike[begins]
    names, starts = np.unique(stratum, return_index=True)
    sick = np.array([int(ill[alike == name].sum()) for name in names])
    well = np.array([int((alike == name).sum()) for name in names]) - sick
    ends = np.searchsorted(alike, stratum, side="right").astype(np.int64)
    return order, Moments(begins, ends, places, first, starts, np.minimum(sick, well) >= fewest)


def _between(columns: NDArray[np.float64], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each row the sums of stretches."""
    sums = np.zeros((len(columns), columns.shape[1] + 1))
    np.cumsum(columns, axis=1, out=sums[:, 1:])
    found: NDArray[np.float64] = sums[:, ends] - sums[:, begins]
    return found


def _p(excess: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
    far = np.abs(excess) / np.sqrt(np.where(variance > 0, variance, np.inf))
    found: NDArray[np.float64] = 2 * stats.norm.sf(far)
    return found
