"""Says how much the final loss depends on the learning rate, and up to which rate training stays stable.

In: cards. Out: the loss at each rate, the best rate, the highest stable one, and the sensitivity of Wortsman et al.
(arXiv:2309.14322, section 2.2): the mean over rates of how far the loss lies above the best one, a lost run counting
with the loss that it began with. Runs that differ in more than the rate are held against each other only within sweeps
over the rate; where there is no such sweep, all runs are taken together, many rates in a few bins, and that is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from mlflow_stability.diagnosis.learning_rate_sweeps import FEWEST_RATES, Rated, sweeps_of
from mlflow_stability.diagnosis.setting import number_of
from mlflow_stability.vocabulary.cohort import Sensitivity
from mlflow_stability.vocabulary.run_card import RunCard

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
        said = (
            "Its sensitivity to the learning rate: there is no sweep over it alone, so it is that of all runs together."
        )
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
