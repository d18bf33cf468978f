"""Kaplan-Meier curves of the share of runs not lost yet, with 95 % bands and log-rank tests between parts.

Guarantees: a run that ended well, or was stopped, counts as long as it was observed and is not called safe beyond that;
no p-value under three runs a side.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from mlflow_stability.diagnosis.cohort.association_tests import holm, p_value_of
from mlflow_stability.diagnosis.parameters.features import Exposure, Feature
from mlflow_stability.vocabulary.result import RunCard, SurvivalCurve

MIN_RUNS = 3
"""Runs on either side of a test."""
MAX_PARTS = 6
"""Parts that are drawn: those that lost the smallest and the largest shares of their runs."""


def survival_of(cards: Sequence[RunCard], parts: Mapping[str, Sequence[RunCard]]) -> tuple[SurvivalCurve, ...]:
    """Return the curve of all runs, then that of each part, tested against all others."""
    observed = [card for card in cards if _is_observed(card)]
    if not observed:
        return ()
    all_runs = _curve("all runs", observed)
    kept = [(label, [card for card in part if _is_observed(card)]) for label, part in parts.items()]
    kept = [(label, part) for label, part in kept if part]
    if len(kept) < 2:
        return (all_runs,)
    shown = _extremes(kept)
    curves = [replace(_curve(label, part), p_value=_p_value(part, observed)) for label, part in shown]
    tested = [curve.p_value for curve in curves if curve.p_value is not None]
    if len(kept) > 2 or sum(len(part) for _, part in kept) < len(observed):  # two halves are one and the same test
        unseen = [1.0] * (len(kept) - len(shown))  # parts that were compared when these were chosen
        adjusted = iter(holm([*tested, *unseen]))
        curves = [curve if curve.p_value is None else replace(curve, p_value=next(adjusted)) for curve in curves]
    return (all_runs, *curves)


def _extremes(parts: list[tuple[str, list[RunCard]]]) -> list[tuple[str, list[RunCard]]]:
    """Return, of many parts, those that lost the smallest and the largest shares of their runs, in order."""
    if len(parts) <= MAX_PARTS:
        return parts
    shares = [sum(card.divergence is not None for card in part) / len(part) for _, part in parts]
    order = sorted(range(len(parts)), key=lambda place: shares[place])
    few = MAX_PARTS // 2
    return [parts[place] for place in sorted((*order[:few], *order[few - MAX_PARTS :]))]


def _is_observed(card: RunCard) -> bool:
    return card.readable and card.last_step is not None and (card.divergence is not None or not card.lost)


def _steps(card: RunCard) -> int:
    """Return steps until the run was lost or ended, counted from its own first step."""
    end = card.divergence if card.divergence is not None else card.last_step
    return max(1, (end or 0) - (card.first_step or 0))


def _curve(label: str, cards: Sequence[RunCard]) -> SurvivalCurve:
    times = np.array([_steps(card) for card in cards], np.float64)
    lost = np.array([card.divergence is not None for card in cards], bool)
    longest = max(card.steps for card in cards)
    if not lost.any():
        return SurvivalCurve(label, len(cards), 0, last_step=longest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the formula of the band is undefined at a share of 0
        curve = stats.ecdf(stats.CensoredData.right_censored(times, ~lost)).sf
        band = curve.confidence_interval(method="log-log") if len(cards) >= MIN_RUNS else None
    falls = np.flatnonzero(np.diff(np.concatenate([[1.0], curve.probabilities])) < 0)
    low = high = np.zeros(0)
    if band is not None:
        low, high = band.low.probabilities[falls], band.high.probabilities[falls]
        low = np.where(np.isfinite(low), low, 0.0)
        high = np.minimum.accumulate(np.where(np.isfinite(high), high, 1.0))
    return SurvivalCurve(
        label,
        len(cards),
        int(lost.sum()),
        tuple(int(step) for step in curve.quantiles[falls]),
        tuple(curve.probabilities[falls].tolist()),
        tuple(low.tolist()),
        tuple(high.tolist()),
        longest,
    )


def _p_value(part: Sequence[RunCard], observed: Sequence[RunCard]) -> float | None:
    # By permutations: with three runs against many, scipy.stats.logrank rejects too often.
    sources = {card.source for card in part}
    inside = np.array([card.source in sources for card in observed], np.float64)
    if min(inside.sum(), len(observed) - inside.sum()) < MIN_RUNS:
        return None
    steps = np.array([_steps(card) for card in observed], np.float64)
    lost = np.array([card.divergence is not None for card in observed], bool)
    feature = Feature("part", inside, ("others", "part"))
    return p_value_of(feature, Exposure(steps, lost, np.arange(len(observed))), tests=MAX_PARTS)
