"""Groups of runs whose parameters are equal but for the seed, and what to expect of each group.

A group has the interquartile mean of its losses (Agarwal et al., arXiv:2108.13264) with a lengthened bootstrap
interval, and a p-value for being worse than the best group. Guarantees: a lost run counts as infinitely bad instead of
being left out, and one that was stopped long before the others of its group does not count; no interval and no p-value
under three seeds; the same runs give the same numbers.

The bootstrap cannot reach beyond the values that it draws from, so its 95 % interval of three seeds covers the true
value in only 75 % of cases. It is made longer by as much as it is too short for normally distributed values (Hesterberg
2015, "What Teachers Should Know About the Bootstrap", section 5.3), as factors where all values are positive. It can
reach beyond the values, but not below 0 where none of them is negative.

For the p-values, all losses are ranked together and mean ranks are compared. Runs are permuted among the groups, and
the best group is chosen again each time, so that the luckiest of many equal groups makes none of the others look worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.cohort.features import NOT_SET
from mlflow_stability.diagnosis.parameters import place_of, seeds_of, setting_of, settings_of
from mlflow_stability.vocabulary.result import Interval, RunCard, SeedGroup

MIN_SEEDS = 3  # runs of a group below which there is no interval and no p-value


@dataclass(frozen=True, slots=True)
class SeedGroupConfig:
    bootstrap_samples: int = 2000
    permutations: int = 4000
    min_permutations: int = 500
    max_values_at_once: int = 2_000_000
    max_values: int = 40_000_000  # values that are permuted at most; very many runs are permuted less often
    seed: int = 20211
    min_length: float = 0.9  # share of the longest run of a group below which a run without trouble was stopped early


CONFIG = SeedGroupConfig()


def same_but_the_seed(first: RunCard, second: RunCard) -> bool:
    """Whether two runs are repetitions of each other."""
    setting = setting_of(first)
    return first.readable and second.readable and bool(setting) and setting == setting_of(second)


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
    labelled.sort(key=lambda row: (_expected_loss(row[2]), sum(card.lost for card in row[0]) / len(row[0])))
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
    sizes = [len(losses[place]) for place in tested]
    ranks = stats.rankdata(np.concatenate([losses[place] for place in tested]))
    groups = np.split(ranks, np.cumsum(sizes)[:-1])
    wanted = min(CONFIG.permutations, max(CONFIG.min_permutations, CONFIG.max_values // len(ranks)))
    chance = stats.permutation_test(
        groups,
        _largest_distance,
        vectorized=True,
        n_resamples=wanted,
        batch=max(1, CONFIG.max_values_at_once // len(ranks)),
        alternative="greater",
        random_state=CONFIG.seed,
    ).null_distribution
    return {
        place: float((1 + (chance >= _largest_distance(groups[0], group) - 1e-9).sum()) / (1 + len(chance)))
        for place, group in zip(tested[1:], groups[1:], strict=True)
    }


def _largest_distance(*groups: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """Return the distance of the worst group from the best one, in standard errors but for a constant factor."""
    sizes = np.array([group.shape[axis] for group in groups])
    means = np.stack([group.mean(axis=axis) for group in groups], axis=-1)
    best = means.argmin(axis=-1, keepdims=True)
    apart = means - np.take_along_axis(means, best, axis=-1)
    return np.asarray((apart / np.sqrt(1 / sizes + 1 / sizes[best])).max(axis=-1))


def estimate(values: Sequence[float]) -> Interval | None:
    """Return the interquartile mean with its 95 % interval: infinite if it reaches a lost run, None for no values."""
    array = np.asarray(values, np.float64)
    if not len(array):
        return None
    middle = _expected_loss(values)
    if len(array) < MIN_SEEDS:
        return Interval(middle)
    generator = np.random.default_rng(CONFIG.seed)
    drawn = array[generator.integers(0, len(array), (CONFIG.bootstrap_samples, len(array)))]
    means = stats.trim_mean(drawn, 0.25, axis=1)
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    low, high = _lengthen(float(low), middle, float(high), len(array), positive=bool((array > 0).all()))
    return Interval(middle, max(low, 0.0) if (array >= 0).all() else low, high)


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
    """Return runs of a group that were stopped long before the longest of them, and were not lost."""
    longest = max(card.steps for card in group)
    return [card for card in group if not card.lost and card.steps < CONFIG.min_length * longest]


def _labels(groups: Sequence[Sequence[RunCard]]) -> list[str]:
    """Name repeated groups by what differs between them, and single runs by what differs between all."""
    settings = settings_of([group[0] for group in groups])
    labels = [label or f"group {number}" for number, label in enumerate(_distinct_labels(settings), start=1)]
    repeated = [place for place, group in enumerate(groups) if len(group) > 1]
    if len(repeated) > 1:
        settings = settings_of([groups[place][0] for place in repeated])
        for place, label in zip(repeated, _distinct_labels(settings), strict=True):
            labels[place] = label or labels[place]
    return labels


def _distinct_labels(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Values of the fewest parameters that tell these settings apart, those that people choose first."""
    names = sorted({name for setting in settings for name in setting}, key=lambda name: (place_of(name), name))
    rows: list[tuple[str, ...]] = [() for _ in settings]
    for name in names:
        longer = [(*row, f"{name}={setting.get(name, NOT_SET)}") for row, setting in zip(rows, settings, strict=True)]
        if len(set(longer)) > len(set(rows)):
            rows = longer
    short = [", ".join(part for part in row if not part.endswith(f"={NOT_SET}")) for row in rows]
    return [text if text and short.count(text) == 1 else ", ".join(row) for text, row in zip(short, rows, strict=True)]


def _distinct_seeds(group: Sequence[RunCard]) -> list[RunCard]:
    """Return the longest run of each seed, because the same seed again is no independent value."""
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
