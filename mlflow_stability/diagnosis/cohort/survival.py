"""Says how long runs last: the share not lost yet, over steps.

In: cards, and how to part them. Out: Kaplan and Meier's curves with 95 % bands, and whether one part is lost sooner
than the others (log-rank). Guarantees: a run that ended well, or was stopped, counts as long as it was watched and is
not called safe beyond that; no p-value under three runs a side.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_stability.diagnosis.associations import corrected, p_value_of
from mlflow_stability.diagnosis.parameters.exposure import Watched
from mlflow_stability.diagnosis.parameters.features import Feature
from mlflow_stability.vocabulary.result import SurvivalCurve
from mlflow_stability.vocabulary.run import RunCard

FEWEST = 3
"""Runs on either side of a test."""
MOST_PARTS = 6
"""Parts that are drawn, those that lost fewest and most; more would not be told apart."""


def survival_of(cards: Sequence[RunCard], parts: Mapping[str, Sequence[RunCard]]) -> tuple[SurvivalCurve, ...]:
    """The curve of all runs, then that of each part, tested against all others."""
    watched = [card for card in cards if _watched(card)]
    if not watched:
        return ()
    curves = [_curve("all runs", watched)]
    named = [(label, [card for card in part if _watched(card)]) for label, part in parts.items()]
    named = [(label, part) for label, part in named if part]
    if len(named) < 2:
        return tuple(curves)
    parts_in_all, named = len(named), _extremes(named)
    found = [_against_the_others(part, watched) for _, part in named]
    tested = [place for place, p in enumerate(found) if p is not None]
    unseen = [1.0] * (parts_in_all - len(named))  # they were looked at when these were chosen
    after = dict(zip(tested, corrected([*(found[place] or 0.0 for place in tested), *unseen]), strict=False))
    if len(named) == 2 and len(named[0][1]) + len(named[1][1]) == len(watched):
        after = {place: found[place] or 0.0 for place in tested}  # both tests are the same one
    for place, (label, part) in enumerate(named):
        curves.append(replace(_curve(label, part), p_value=after.get(place)))
    return tuple(curves)


def _extremes(parts: list[tuple[str, list[RunCard]]]) -> list[tuple[str, list[RunCard]]]:
    """Of many parts those that lost the smallest and the largest share of their runs, in the order given."""
    if len(parts) <= MOST_PARTS:
        return parts
    shares = [sum(card.divergence is not None for card in part) / len(part) for _, part in parts]
    order = sorted(range(len(parts)), key=lambda place: shares[place])
    few = MOST_PARTS // 2
    return [parts[place] for place in sorted((*order[:few], *order[few - MOST_PARTS :]))]


def _watched(card: RunCard) -> bool:
    return card.readable and card.last_step is not None and (card.divergence is not None or not card.lost)


def _time(card: RunCard) -> int:
    """Steps until it was lost, or for as long as it was watched; counted from its own first step."""
    end = card.divergence if card.divergence is not None else card.last_step
    return max(1, (end or 0) - (card.first_step or 0))


def _censored(cards: Sequence[RunCard]) -> stats.CensoredData:
    times = np.array([_time(card) for card in cards], np.float64)
    still_there = np.array([card.divergence is None for card in cards], bool)
    return stats.CensoredData.right_censored(times, still_there)


def _curve(label: str, cards: Sequence[RunCard]) -> SurvivalCurve:
    lost = sum(card.divergence is not None for card in cards)
    longest = max(card.steps for card in cards)
    if not lost:
        return SurvivalCurve(label, len(cards), 0, last_step=longest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the share is 0 the band's formula ends
        found = stats.ecdf(_censored(cards)).sf
        band = found.confidence_interval(method="log-log") if len(cards) >= FEWEST else None
    falls = np.flatnonzero(np.diff(np.concatenate([[1.0], found.probabilities])) < 0)
    falls_to = found.probabilities[falls]
    low = () if band is None else _filled(band.low.probabilities[falls], 0.0).tolist()
    high = () if band is None else np.minimum.accumulate(_filled(band.high.probabilities[falls], 1.0)).tolist()
    return SurvivalCurve(
        label,
        len(cards),
        lost,
        tuple(int(each) for each in found.quantiles[falls]),
        tuple(falls_to.tolist()),
        tuple(low),
        tuple(high),
        longest,
    )


def _filled(bound: NDArray[np.float64], edge: float) -> NDArray[np.float64]:
    """The bound, at its edge where the formula gives none."""
    return np.where(np.isfinite(bound), bound, edge)


def _against_the_others(part: Sequence[RunCard], watched: Sequence[RunCard]) -> float | None:
    """By shuffling, for of three runs against many the usual approximation finds a difference far too often."""
    mine = {card.source for card in part}
    inside = np.array([card.source in mine for card in watched], np.float64)
    if min(inside.sum(), len(watched) - inside.sum()) < FEWEST:
        return None
    times = np.array([_time(card) for card in watched], np.float64)
    lost = np.array([card.divergence is not None for card in watched], bool)
    asked = Feature("part", inside, ("others", "part"))
    return p_value_of(asked, Watched(times, lost, np.arange(len(watched))), tests=MOST_PARTS)
