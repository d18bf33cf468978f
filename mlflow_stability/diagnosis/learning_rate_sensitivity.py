"""Says how much the final loss depends on the learning rate, and up to which rate training stays stable.

In: cards. Out: the loss at each rate, the best rate, the highest stable one, and the sensitivity of Wortsman et al.
(arXiv:2309.14322, section 2.2): the mean over rates of how far the loss lies above the best one, a lost run counting
with the loss that it began with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from mlflow_stability.diagnosis.features import number_of
from mlflow_stability.vocabulary.cohort import Sensitivity
from mlflow_stability.vocabulary.run_card import RunCard

MEASURED = "the highest learning rate that was measured"
FEWEST_RATES = 3
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


def sensitivity_of(cards: Sequence[RunCard]) -> Sensitivity | None:
    """Over all runs whose rate and loss are known; None for fewer than three different rates."""
    known = [(said, card) for card in cards if (said := rate_of(card)) is not None and _loss(card) is not None]
    names = {name for (name, _), _ in known}
    if len(names) != 1:
        return None
    by_rate: dict[float, list[RunCard]] = {}
    for (_, rate), card in known:
        by_rate.setdefault(rate, []).append(card)
    if len(by_rate) < FEWEST_RATES:
        return None
    rates = sorted(by_rate)
    losses = [float(np.mean([_loss(card) or 0.0 for card in by_rate[rate]])) for rate in rates]
    unstable = [float(np.mean([card.unstable is True for card in by_rate[rate]])) for rate in rates]
    best = int(np.argmin(losses))
    troubled = next((place for place, share in enumerate(unstable) if share > 0), len(rates))
    return Sensitivity(
        names.pop(),
        tuple(rates),
        tuple(losses),
        tuple(unstable),
        tuple(len(by_rate[rate]) for rate in rates),
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
