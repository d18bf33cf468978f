"""Finds runs that differ in nothing but the learning rate and the seed.

In: the rate of each run, and its card. Out: sweeps over the rate. Promised: a parameter that always moves with the
rate, such as a lowest rate that is a tenth of it, does not part runs; runs that were stopped early are in none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mlflow_stability.diagnosis.confounding import rank_correlation
from mlflow_stability.diagnosis.seed_groups import stopped_early
from mlflow_stability.diagnosis.setting import number_of, settings_of
from mlflow_stability.vocabulary.run_card import RunCard

Rated = tuple[float, RunCard]
"""A run with its learning rate."""
FEWEST_RATES = 3


def sweeps_of(known: Sequence[Rated], name: str) -> list[list[Rated]]:
    """Runs that are alike in all but the rate, which ``name`` holds; each with at least three different rates."""
    settings = settings_of([card for _, card in known])
    rates = np.array([rate for rate, _ in known])
    moving = {each for each in _differing(settings) if each == name or _moves_with(rates, settings, each)}
    groups: dict[tuple[tuple[str, str], ...], list[Rated]] = {}
    for each, setting in zip(known, settings, strict=True):
        key = tuple((param, value) for param, value in setting.items() if param not in moving)
        groups.setdefault(key, []).append(each)
    whole = []
    for group in groups.values():
        early = {card.source for card in stopped_early([card for _, card in group])}
        whole.append([each for each in group if each[1].source not in early])
    return [group for group in whole if len({rate for rate, _ in group}) >= FEWEST_RATES]


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    names = {name for each in settings for name in each}
    return [name for name in names if len({each.get(name) for each in settings}) > 1]


def _moves_with(rates: np.ndarray, settings: Sequence[Mapping[str, str]], name: str) -> bool:
    numbers = [number_of(each.get(name, "")) for each in settings]
    values = np.array([math.nan if each is None else each for each in numbers])
    if np.isnan(values).any():
        return False
    correlation = rank_correlation(rates, values)
    return correlation is not None and abs(correlation) > 1 - 1e-9
