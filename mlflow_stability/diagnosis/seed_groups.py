"""Puts runs together whose parameters are equal but for the seed, and says what to expect of each such group.

In: cards. Out: groups with the interquartile mean of their losses and a bootstrap interval (Agarwal et al.,
arXiv:2108.13264), and whether each is worse than the best one beyond chance. Promised: a lost run counts as infinitely
bad instead of being left out; no interval and no p-value under three seeds; the same runs give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.many_tests import corrected
from mlflow_stability.diagnosis.parameter_difference import told_params
from mlflow_stability.diagnosis.seed import is_seed
from mlflow_stability.vocabulary.cohort import Interval, SeedGroup
from mlflow_stability.vocabulary.run_card import RunCard

FEWEST = 3
"""Seeds below which nothing is said about chance."""
RESAMPLES = 2000
SEED = 20211
"""Of the bootstrap's own dice, so that the same runs give the same interval."""
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
    """The interquartile mean with its bootstrap interval; None for no values."""
    known = np.asarray(values, np.float64)
    if not len(known):
        return None
    if len(known) < FEWEST:
        return Interval(interquartile_mean(known))
    dice = np.random.default_rng(SEED)
    drawn = known[dice.integers(0, len(known), (RESAMPLES, len(known)))]
    cut = len(known) // 4
    means = np.sort(drawn, axis=1)[:, cut : len(known) - cut].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    return Interval(interquartile_mean(known), float(low), float(high))


def _identity(card: RunCard) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in told_params(card).items() if not is_seed(name)))


def _labels(groups: Sequence[Sequence[RunCard]]) -> list[str]:
    found = [dict(_identity(group[0])) for group in groups]
    names = list(dict.fromkeys(name for each in found for name in each))
    telling = [name for name in names if len({each.get(name) for each in found}) > 1]
    labels = []
    for number, each in enumerate(found, start=1):
        parts = [f"{name}={each.get(name, 'not set')}" for name in telling[:LONGEST_LABEL]]
        labels.append(", ".join(parts) + (", …" if len(telling) > LONGEST_LABEL else "") or f"group {number}")
    return labels


def _losses(group: Sequence[RunCard], name: str) -> list[float]:
    found = []
    for card in group:
        value = getattr(card, name)
        if card.lost or value is not None:
            found.append(math.inf if card.lost or not math.isfinite(value) else value)
    return found


def _summary(group: Sequence[RunCard], label: str) -> SeedGroup:
    return SeedGroup(
        label,
        tuple(card.source for card in group),
        unstable=sum(card.unstable is True for card in group),
        lost=sum(card.lost for card in group),
        final_loss=estimate(_losses(group, "final_loss")),
        best_loss=estimate([card.best_loss for card in group if card.best_loss is not None]),
    )


def _badness(group: SeedGroup) -> tuple[float, float]:
    return math.inf if group.final_loss is None else group.final_loss.value, group.lost / len(group.sources)


def _with_tests(groups: list[SeedGroup], cards: list[list[RunCard]]) -> list[SeedGroup]:
    """Mann and Whitney's test of each group against the best one that has enough seeds."""
    losses = [_losses(each, "final_loss") for each in cards]
    enough = [place for place, each in enumerate(losses) if len(each) >= FEWEST]
    if len(enough) < 2:
        return groups
    best, *others = enough
    found = [
        float(stats.mannwhitneyu(losses[each], losses[best], alternative="greater", method="auto").pvalue)
        for each in others
    ]
    p_values = dict(zip(others, corrected(found), strict=True))
    return [replace(group, p_value=p_values.get(place)) for place, group in enumerate(groups)]
