"""Puts runs together whose parameters are equal but for the seed, and says what to expect of each such group.

In: cards. Out: groups with the interquartile mean of their losses and a bootstrap interval (Agarwal et al.,
arXiv:2108.13264), and whether each is worse than the best one beyond chance. Guarantees: a lost run counts as
infinitely bad instead of being left out, and one that was stopped long before the others of its group does not count;
no interval and no p-value under three seeds; the same runs give the same numbers.

The bootstrap cannot reach beyond the values that it draws from, so of three seeds its plain interval holds the true
value in three cases of four instead of nineteen of twenty. It is made longer by as much as it is too short for
bell-shaped values (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 5.3).

Tests which groups of repetitions are worse than the best of them.

In: for each group the losses of its runs, and which one is the best. Out: a p-value for each other group. All losses
are ranked together, and the mean ranks compared. Shuffling runs among the groups says what chance does, the choice of
the best one included, so that the luckiest of many equal groups makes none of the others look worse. Guarantees: no
p-value under three runs; the same losses give the same p-values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.parameters.seeds import seeds_of
from mlflow_stability.diagnosis.parameters.setting import setting_of
from mlflow_stability.vocabulary.result import Interval, SeedGroup
from mlflow_stability.vocabulary.run import RunCard

FEWEST = 3
"""Runs of a group below which nothing is said about chance."""
SHUFFLES, AT_ONCE = 4000, 2_000_000
MOST_VALUES = 40_000_000
"""So many are shuffled at most; of very many runs fewer times."""


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
    generator = np.random.default_rng(SEED)
    shuffles = int(min(SHUFFLES, max(500, MOST_VALUES // len(ranks))))
    chunk = max(1, AT_ONCE // len(ranks))
    found = []
    for done in range(0, shuffles, chunk):
        count = min(chunk, shuffles - done)
        shuffled = generator.permuted(np.broadcast_to(ranks, (count, len(ranks))), axis=1)
        means = np.add.reduceat(shuffled, starts, axis=1) / sizes
        lowest = means.argmin(axis=1)
        apart = means - np.take_along_axis(means, lowest[:, None], axis=1)
        found.append((apart / np.sqrt(1 / sizes + 1 / sizes[lowest][:, None])).max(axis=1))
    return np.concatenate(found)


RESAMPLES = 2000
SEED = 20211
"""Of the bootstrap's own random numbers, so that the same runs give the same interval."""
WHOLE = 0.9
"""A run without trouble that is shorter than this share of the longest of its group was stopped too early to count."""
LONGEST_LABEL = 4
"""Parameters that a label names at most."""


def same_but_the_seed(one: RunCard, other: RunCard) -> bool:
    """Whether two runs are repetitions of each other."""
    return one.readable and other.readable and bool(_identity(one)) and _identity(one) == _identity(other)


def groups_of_seeds(cards: Sequence[RunCard]) -> list[list[RunCard]]:
    """Repetitions together, in the order in which the first of each came; a run without parameters is by itself."""
    groups: dict[tuple[tuple[str, str], ...], list[RunCard]] = {}
    for card in cards:
        groups.setdefault(_identity(card) or (("", card.source),), []).append(card)
    return list(groups.values())


def seed_groups_of(cards: Sequence[RunCard]) -> tuple[SeedGroup, ...]:
    """What to expect of each group, the best first; none where no two runs are repetitions."""
    groups = groups_of_seeds(cards)
    if all(len(group) < 2 for group in groups):
        return ()
    labels = _labels(groups)
    found = [_summary(group, label) for group, label in zip(groups, labels, strict=True)]
    order = sorted(range(len(found)), key=lambda place: _badness(found[place]))
    return tuple(_with_tests([found[each] for each in order], [groups[each] for each in order]))


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """The mean of the middle half, the quarters at both ends left out; infinite where it reaches a lost run."""
    ordered = np.sort(values)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def estimate(values: Sequence[float]) -> Interval | None:
    """The interquartile mean with its interval; None for no values."""
    known = np.asarray(values, np.float64)
    if not len(known):
        return None
    middle = interquartile_mean(known)
    if len(known) < FEWEST:
        return Interval(middle)
    generator = np.random.default_rng(SEED)
    drawn = known[generator.integers(0, len(known), (RESAMPLES, len(known)))]
    cut = len(known) // 4
    means = np.sort(drawn, axis=1)[:, cut : len(known) - cut].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    return Interval(middle, *_longer(float(low), middle, float(high), len(known), positive=bool((known > 0).all())))


def _longer(low: float, middle: float, high: float, count: int, *, positive: bool) -> tuple[float, float]:
    """The interval with both arms made longer; of positive values as factors, so that it stays positive."""
    longer = math.sqrt(count / (count - 1)) * float(stats.t.ppf(0.975, count - 1) / stats.norm.ppf(0.975))
    low, high = min(low, middle), max(high, middle)
    if not math.isfinite(middle):
        return low, high
    if not positive or low <= 0:
        return middle - longer * (middle - low), middle + longer * (high - middle)
    with np.errstate(over="ignore"):
        factors = (np.array([low, high]) / middle) ** longer
    return float(middle * factors[0]), float(middle * factors[1])


def stopped_early(group: Sequence[RunCard]) -> list[RunCard]:
    """The runs of a group that were stopped long before the longest of them, and not for being lost."""
    longest = max(card.steps for card in group)
    return [card for card in group if not card.lost and card.steps < WHOLE * longest]


def _identity(card: RunCard) -> tuple[tuple[str, str], ...]:
    return tuple(setting_of(card).items())


def _labels(groups: Sequence[Sequence[RunCard]]) -> list[str]:
    found = [dict(_identity(group[0])) for group in groups]
    names = list(dict.fromkeys(name for each in found for name in each))
    telling = [name for name in names if len({each.get(name) for each in found}) > 1]
    labels = []
    for number, each in enumerate(found, start=1):
        parts = [f"{name}={each.get(name, 'not set')}" for name in telling[:LONGEST_LABEL]]
        labels.append(", ".join(parts) + (", …" if len(telling) > LONGEST_LABEL else "") or f"group {number}")
    return labels


def _each_seed_once(group: Sequence[RunCard]) -> list[RunCard]:
    """The longest run of each seed, for the same one again tells nothing of others; a run without one has its own."""
    longest: dict[object, RunCard] = {}
    for card in group:
        seed = tuple(sorted(seeds_of(card.params).items())) or card.source
        if seed not in longest or card.steps > longest[seed].steps:
            longest[seed] = card
    return list(longest.values())


def _finals(group: Sequence[RunCard]) -> list[float]:
    early = {card.source for card in stopped_early(group)}
    known = _each_seed_once([card for card in group if card.source not in early])
    values = [(card.lost, card.final_loss) for card in known]
    return [
        math.inf if lost or value is None or not math.isfinite(value) else value
        for lost, value in values
        if lost or value is not None
    ]


def _summary(group: Sequence[RunCard], label: str) -> SeedGroup:
    return SeedGroup(
        label,
        tuple(card.source for card in group),
        unstable=sum(card.unstable is True for card in group),
        lost=sum(card.lost for card in group),
        final_loss=estimate(_finals(group)),
        best_loss=estimate([card.best_loss for card in _each_seed_once(group) if card.best_loss is not None]),
    )


def _badness(group: SeedGroup) -> tuple[float, float]:
    return math.inf if group.final_loss is None else group.final_loss.value, group.lost / len(group.sources)


def _with_tests(groups: list[SeedGroup], cards: list[list[RunCard]]) -> list[SeedGroup]:
    """Each against the best one that has enough seeds."""
    losses = [_finals(each) for each in cards]
    best = next((place for place, each in enumerate(losses) if len(each) >= FEWEST), None)
    p_values = {} if best is None else worse_than_the_best(losses, best)
    return [replace(group, p_value=p_values.get(place)) for place, group in enumerate(groups)]
