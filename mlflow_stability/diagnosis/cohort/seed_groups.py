"""Groups of runs whose parameters are equal but for the seed, and what to expect of each group.

A group has the interquartile mean of its losses with a bootstrap interval (Agarwal et al., arXiv:2108.13264), and a
p-value for being worse than the best group. Guarantees: a lost run counts as infinitely bad instead of being left out,
and one that was stopped long before the others of its group does not count; no interval and no p-value under three
seeds; the same runs give the same numbers.

The bootstrap cannot reach beyond the values that it draws from, so its 95 % interval of three seeds covers the true
value in only 75 % of cases. It is made longer by as much as it is too short for normally distributed values (Hesterberg
2015, "What Teachers Should Know About the Bootstrap", section 5.3).

For the p-values, all losses are ranked together and mean ranks are compared. Runs are permuted among the groups, and
the best group is chosen again each time, so that the luckiest of many equal groups makes none of the others look worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.parameters.seeds import seeds_of
from mlflow_stability.diagnosis.parameters.setting import setting_of
from mlflow_stability.vocabulary.result import Interval, RunCard, SeedGroup

MIN_SEEDS = 3
"""Runs of a group below which there is no interval and no p-value."""


@dataclass(frozen=True, slots=True)
class SeedGroupConfig:
    """Limits of the comparison of groups."""

    bootstrap_samples: int = 2000
    permutations: int = 4000
    min_permutations: int = 500
    max_values_at_once: int = 2_000_000
    max_values: int = 40_000_000
    """Values that are permuted at most; very many runs are permuted less often."""
    seed: int = 20211
    min_length: float = 0.9
    """A run without trouble that is shorter than this share of the longest of its group was stopped early."""
    max_params_in_label: int = 4


CONFIG = SeedGroupConfig()


def same_but_the_seed(one: RunCard, other: RunCard) -> bool:
    """Whether two runs are repetitions of each other."""
    return one.readable and other.readable and bool(setting_of(one)) and setting_of(one) == setting_of(other)


def groups_of_seeds(cards: Sequence[RunCard]) -> list[list[RunCard]]:
    """Group repetitions, in the order of the first of each; a run without parameters is a group of its own."""
    groups: dict[tuple[tuple[str, str], ...], list[RunCard]] = {}
    for card in cards:
        groups.setdefault(tuple(setting_of(card).items()) or (("", card.source),), []).append(card)
    return list(groups.values())


def seed_groups_of(groups: Sequence[Sequence[RunCard]]) -> tuple[SeedGroup, ...]:
    """Summarise the groups of `groups_of_seeds`, the best first; none if no two runs are repetitions."""
    if all(len(group) < 2 for group in groups):
        return ()
    labelled = [(group, label, _final_losses(group)) for group, label in zip(groups, _labels(groups), strict=True)]
    labelled.sort(key=lambda each: (_expected_loss(each[2]), sum(card.lost for card in each[0]) / len(each[0])))
    p_values = p_values_against_best([losses for _, _, losses in labelled])
    return tuple(
        SeedGroup(
            label,
            tuple(card.source for card in group),
            unstable=sum(card.unstable is True for card in group),
            lost=sum(card.lost for card in group),
            final_loss=estimate(losses),
            best_loss=estimate([card.best_loss for card in _distinct_seeds(group) if card.best_loss is not None]),
            p_value=p_values.get(place),
        )
        for place, (group, label, losses) in enumerate(labelled)
    )


def _expected_loss(losses: Sequence[float]) -> float:
    return float(stats.trim_mean(losses, 0.25)) if len(losses) else math.inf


def p_values_against_best(losses: Sequence[Sequence[float]]) -> dict[int, float]:
    """Return the p-value of being worse than the best group, which comes first; none for groups with few runs."""
    tested = [place for place, values in enumerate(losses) if len(values) >= MIN_SEEDS]
    if len(tested) < 2:
        return {}
    sizes = np.array([len(losses[place]) for place in tested])
    ranks = stats.rankdata(np.concatenate([losses[place] for place in tested]))
    starts = np.append(0, np.cumsum(sizes)[:-1])
    means = np.add.reduceat(ranks, starts) / sizes
    distances = (means - means[0]) / np.sqrt(1 / sizes + 1 / sizes[0])
    by_chance = _largest_distances(ranks, starts, sizes)
    return {
        place: float((1 + (by_chance >= distance - 1e-9).sum()) / (1 + len(by_chance)))
        for place, distance in list(zip(tested, distances, strict=True))[1:]
    }


def _largest_distances(
    ranks: NDArray[np.float64], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Distance of the worst group from the best one, for each permutation."""
    generator = np.random.default_rng(CONFIG.seed)
    permutations = int(min(CONFIG.permutations, max(CONFIG.min_permutations, CONFIG.max_values // len(ranks))))
    chunk = max(1, CONFIG.max_values_at_once // len(ranks))
    distances = []
    for done in range(0, permutations, chunk):
        count = min(chunk, permutations - done)
        permuted = generator.permuted(np.broadcast_to(ranks, (count, len(ranks))), axis=1)
        means = np.add.reduceat(permuted, starts, axis=1) / sizes
        best = means.argmin(axis=1)
        apart = means - np.take_along_axis(means, best[:, None], axis=1)
        distances.append((apart / np.sqrt(1 / sizes + 1 / sizes[best][:, None])).max(axis=1))
    return np.concatenate(distances)


def estimate(values: Sequence[float]) -> Interval | None:
    """Return the interquartile mean with its 95 % interval: infinite if it reaches a lost run, None for no values."""
    known = np.asarray(values, np.float64)
    if not len(known):
        return None
    middle = _expected_loss(values)
    if len(known) < MIN_SEEDS:
        return Interval(middle)
    generator = np.random.default_rng(CONFIG.seed)
    drawn = known[generator.integers(0, len(known), (CONFIG.bootstrap_samples, len(known)))]
    means = stats.trim_mean(drawn, 0.25, axis=1)
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    return Interval(middle, *_lengthen(float(low), middle, float(high), len(known), positive=bool((known > 0).all())))


def _lengthen(low: float, middle: float, high: float, count: int, *, positive: bool) -> tuple[float, float]:
    """Make both arms of the interval longer; those of positive values as factors, so that it stays positive."""
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
    """The runs of a group that were stopped long before the longest of them, and were not lost."""
    longest = max(card.steps for card in group)
    return [card for card in group if not card.lost and card.steps < CONFIG.min_length * longest]


def _labels(groups: Sequence[Sequence[RunCard]]) -> list[str]:
    settings = [setting_of(group[0]) for group in groups]
    names = dict.fromkeys(name for setting in settings for name in setting)
    telling = [name for name in names if len({setting.get(name) for setting in settings}) > 1]
    shown = telling[: CONFIG.max_params_in_label]
    labels = []
    for number, setting in enumerate(settings, start=1):
        parts = [f"{name}={setting.get(name, 'not set')}" for name in shown]
        labels.append(", ".join(parts) + (", …" if len(telling) > len(shown) else "") or f"group {number}")
    return labels


def _distinct_seeds(group: Sequence[RunCard]) -> list[RunCard]:
    """The longest run of each seed, because the same seed again is no independent value."""
    longest: dict[object, RunCard] = {}
    for card in group:
        seed = tuple(sorted(seeds_of(card.params).items())) or card.source
        if seed not in longest or card.steps > longest[seed].steps:
            longest[seed] = card
    return list(longest.values())


def _final_losses(group: Sequence[RunCard]) -> list[float]:
    early = {card.source for card in stopped_early(group)}
    return [
        math.inf if card.lost or card.final_loss is None or not math.isfinite(card.final_loss) else card.final_loss
        for card in _distinct_seeds([card for card in group if card.source not in early])
        if card.lost or card.final_loss is not None
    ]
