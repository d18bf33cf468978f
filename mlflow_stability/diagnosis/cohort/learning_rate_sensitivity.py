"""Says how much the final loss depends on the learning rate, and up to which rate training stays stable.

In: cards. Out: the loss at each rate, the best rate, the highest stable one, and the sensitivity of Wortsman et al.
(arXiv:2309.14322, section 2.2): the mean over rates of how far the loss lies above the best one, a lost run counting
with the loss that it began with. Runs that differ in more than the rate are held against each other only within sweeps
over the rate; where there is no such sweep, all runs are taken together, many rates in a few bins, and that is said.

Finds runs that differ in nothing but the learning rate and the seed.

In: the rate of each run, and its card. Out: sweeps over the rate. Guarantees: a parameter that always moves with the
rate, such as a lowest rate that is a tenth of it, does not part runs; runs that were stopped early are in none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from mlflow_stability.diagnosis.associations import rank_correlation
from mlflow_stability.diagnosis.cohort.seed_groups import stopped_early
from mlflow_stability.diagnosis.parameters.setting import number_of, settings_of
from mlflow_stability.vocabulary.result import RunCard, Sensitivity

Rated = tuple[float, RunCard]
"""A run with its learning rate."""
FEWEST_RATES = 3
"""A sensitivity is told of so many learning rates."""


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


MEASURED = "the highest learning rate that was measured"
MOST_RATES, BIN = 10, 5
"""Of runs that differ in more so many rates at most, each with at least so many runs."""
_RATE = re.compile(
    r"(?:^|[._/ -])(?:(?:base|max|peak|init(?:ial)?)_?)?(?:lr|learning_?rate)(?:_?(?:max|peak|init))?$", re.I
)


def rate_of(card: RunCard) -> tuple[str, float] | None:
    """The learning rate that a run was given, and the parameter that says so; else the highest that was measured."""
    for name in sorted(card.params, key=lambda name: (len(name), name)):
        value = number_of(card.params[name]) if _RATE.search(name) else None
        if value is not None and value > 0:
            return name, value
    measured = card.peak_learning_rate
    return (MEASURED, measured) if measured is not None and math.isfinite(measured) and measured > 0 else None


def sensitivity_of(cards: Sequence[RunCard]) -> tuple[Sensitivity | None, str]:
    """Over all runs whose rate and loss are known, and what it leaves out; None for fewer than three rates."""
    known = [(at, card) for card in cards if (at := rate_of(card)) is not None and _loss(card) is not None]
    names = {name for (name, _), _ in known}
    rated = [(rate, card) for (_, rate), card in known]
    if len(names) != 1 or len({rate for rate, _ in rated}) < FEWEST_RATES:
        return None, ""
    name = names.pop()
    sweeps = _comparable(sweeps_of(rated, name))
    if not sweeps:
        said = "Learning-rate sensitivity: no sweep over the learning rate alone, so all runs are taken together."
        return _sensitivity(name, [_binned(rated)]), said
    count = sum(map(len, sweeps))
    said = (
        ""
        if count == len(rated)
        else (
            f"What the learning rate does in {len(rated) - count} of {len(rated)} runs: they differ from the other "
            f"{count} in more than the rate, have rates that those have not, or were stopped early."
        )
    )
    return _sensitivity(name, sweeps), said


def _comparable(sweeps: Sequence[list[Rated]]) -> list[list[Rated]]:
    """The sweeps over the rates that all of them have; the largest alone where those are too few."""
    if not sweeps:
        return []
    common = set.intersection(*({rate for rate, _ in sweep} for sweep in sweeps))
    if len(common) < FEWEST_RATES:
        return [max(sweeps, key=len)]
    return [[each for each in sweep if each[0] in common] for sweep in sweeps]


def _binned(rated: Sequence[Rated]) -> list[Rated]:
    """The runs with the middle of their bin for a rate, where they have too many different ones."""
    if len({rate for rate, _ in rated}) <= MOST_RATES:
        return list(rated)
    ordered = sorted(rated, key=lambda each: each[0])
    found = []
    for part in np.array_split(np.arange(len(ordered)), max(FEWEST_RATES, min(MOST_RATES, len(ordered) // BIN))):
        middle = math.exp(float(np.mean([math.log(ordered[place][0]) for place in part])))
        found += [(middle, ordered[place][1]) for place in part]
    return found


def _sensitivity(name: str, sweeps: Sequence[list[Rated]]) -> Sensitivity:
    rates = sorted({rate for sweep in sweeps for rate, _ in sweep})
    at = [[[card for each, card in sweep if each == rate] for sweep in sweeps] for rate in rates]
    losses = [float(np.mean([np.mean([_loss(card) or 0.0 for card in cards]) for cards in here])) for here in at]
    every = [[card for cards in here for card in cards] for here in at]
    unstable = [float(np.mean([card.unstable is True for card in cards])) for cards in every]
    best = int(np.argmin(losses))
    troubled = next((place for place, share in enumerate(unstable) if share > 0), len(rates))
    return Sensitivity(
        name,
        tuple(rates),
        tuple(losses),
        tuple(unstable),
        tuple(map(len, every)),
        rates[best],
        rates[troubled - 1] if troubled else None,
        float(np.mean(losses) - losses[best]),
    )


def _loss(card: RunCard) -> float | None:
    """The final loss, never above the one it began with."""
    first, final = card.first_loss, card.final_loss
    if first is None or not math.isfinite(first):
        return None
    return first if final is None or card.lost or not math.isfinite(final) else min(first, final)
