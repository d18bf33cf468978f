"""Tests which groups of repetitions are worse than the best of them.

In: for each group the losses of its runs, and which one is the best. Out: a p-value for each other group. All losses
are ranked together, and the mean ranks compared. Shuffling runs among the groups says what chance does, the choice of
the best one included, so that the luckiest of many equal groups makes none of the others look worse. Promised: no
p-value under three runs; the same losses give the same p-values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FEWEST = 3
"""Runs of a group below which nothing is said about chance."""
SHUFFLES, AT_ONCE = 4000, 2_000_000
MOST_VALUES = 40_000_000
"""So many are shuffled at most; of very many runs fewer times."""
SEED = 20211
"""Of the shuffling's own dice."""


def worse_than_the_best(losses: Sequence[Sequence[float]], best: int) -> dict[int, float]:
    """For each group with enough runs but the best how likely chance makes any group look so much worse than it."""
    enough = [place for place, each in enumerate(losses) if len(each) >= FEWEST]
    if len(enough) < 2 or best not in enough:
        return {}
    sizes = np.array([len(losses[place]) for place in enough])
    ranks = stats.rankdata(np.concatenate([losses[place] for place in enough]))
    starts = np.append(0, np.cumsum(sizes)[:-1])
    means = np.add.reduceat(ranks, starts) / sizes
    mine = enough.index(best)
    found = (means - means[mine]) / np.sqrt(1 / sizes + 1 / sizes[mine])
    farthest = _farthest(ranks, starts, sizes)
    return {
        place: float((1 + (farthest >= far - 1e-9).sum()) / (1 + len(farthest)))
        for place, far in zip(enough, found, strict=True)
        if place != best
    }


def _farthest(ranks: NDArray[np.float64], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """How far from the best group the worst one lies, in each shuffling."""
    dice = np.random.default_rng(SEED)
    shuffles = int(min(SHUFFLES, max(500, MOST_VALUES // len(ranks))))
    chunk = max(1, AT_ONCE // len(ranks))
    found = []
    for done in range(0, shuffles, chunk):
        count = min(chunk, shuffles - done)
        shuffled = dice.permuted(np.broadcast_to(ranks, (count, len(ranks))), axis=1)
        means = np.add.reduceat(shuffled, starts, axis=1) / sizes
        lowest = means.argmin(axis=1)
        apart = means - np.take_along_axis(means, lowest[:, None], axis=1)
        found.append((apart / np.sqrt(1 / sizes + 1 / sizes[lowest][:, None])).max(axis=1))
    return np.concatenate(found)
