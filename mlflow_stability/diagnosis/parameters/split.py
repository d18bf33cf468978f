"""Finds where to part runs by one parameter so that unstable and stable ones fall on different sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.parameters.features import Feature

FEWEST = 3
"""Runs on either side at least."""
MOST_LIMITS = 200
"""So many limits of a number are tried at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Two sides of a parameter."""

    worse: NDArray[np.bool_]
    """The runs on the side that is unstable more often."""
    words: str
    """That side: ``lr above 0.003``."""
    other_words: str
    limit: float | None = None
    """For a number that is parted by its size, where."""


def best_split(feature: Feature, outcome: NDArray[np.bool_], among: NDArray[np.bool_] | None = None) -> Split | None:
    """The split with the purest sides, among all runs or some; None where there is none."""
    asked = np.ones(len(outcome), bool) if among is None else among
    found = [each for each in _sides(feature) if _allowed(each[0], asked)]
    if not found:
        return None
    side, words, other_words, limit = max(found, key=lambda each: _purity(each[0], outcome, asked))
    if outcome[asked & side].mean() >= outcome[asked & ~side].mean():
        return Split(side, words, other_words, limit)
    return Split(~side, other_words, words, limit)


def _sides(feature: Feature) -> list[tuple[NDArray[np.bool_], str, str, float | None]]:
    name = feature.name
    if not feature.numeric:
        only_two = len(feature.levels) == 2
        return [
            (
                feature.values == place,
                f"{name} {level}",
                f"{name} {feature.levels[1 - place]}" if only_two else f"{name} other than {level}",
                None,
            )
            for place, level in enumerate(feature.levels)
        ]
    known = np.unique(feature.values[~np.isnan(feature.values)])
    limits = _between(known)
    sides: list[tuple[NDArray[np.bool_], str, str, float | None]] = [
        (feature.values > limit, f"{name} > {limit:.3g}", f"{name} ≤ {limit:.3g}", limit) for limit in limits
    ]
    absent, unset = feature.absent, bool(np.isnan(feature.values).any())
    zero = bool((feature.values == 0).any())
    what = "0 or not set" if zero and unset else "not set" if unset else "0"
    return [(absent, f"{name} {what}", f"{name} not 0" if zero else f"{name} set", None), *sides]


def _between(known: NDArray[np.float64]) -> list[float]:
    """Values between neighbours, of very many evenly chosen ones; of positive numbers their geometric middle."""
    places = np.arange(len(known) - 1)
    if len(places) > MOST_LIMITS:
        places = np.linspace(0, len(known) - 2, MOST_LIMITS).round().astype(np.int64)
    low, high = known[places], known[places + 1]
    return [float(each) for each in middles_of(low, high, positive=bool((known > 0).all()))]


def middles_of(low: NDArray[np.float64], high: NDArray[np.float64], *, positive: bool) -> NDArray[np.float64]:
    """Between each two neighbours."""
    return np.sqrt(low) * np.sqrt(high) if positive else low / 2 + high / 2


def _allowed(side: NDArray[np.bool_], among: NDArray[np.bool_]) -> bool:
    return min(int((side & among).sum()), int((~side & among).sum())) >= FEWEST


def _purity(side: NDArray[np.bool_], outcome: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    """How much less mixed the two sides are than all of them together, by Gini's measure."""
    parts = [outcome[among & side], outcome[among & ~side]]
    return -float(sum(len(part) * part.mean() * (1 - part.mean()) for part in parts))
