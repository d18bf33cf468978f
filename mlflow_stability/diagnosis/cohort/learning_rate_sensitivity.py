"""How much the final loss depends on the learning rate, and up to which rate training stays stable.

The sensitivity is that of Wortsman et al. (arXiv:2309.14322, section 2.2): the mean over rates of how far the loss is
above the best one, where a lost run counts with its first loss. Runs are compared within sweeps over the rate alone;
where there is no sweep, all runs are taken together, many rates in a few bins. A parameter that always moves with the
rate, such as a lowest rate that is a tenth of it, does not separate runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from mlflow_stability.diagnosis.cohort.association_tests import rank_correlation
from mlflow_stability.diagnosis.cohort.seed_groups import stopped_early
from mlflow_stability.diagnosis.parameters.settings import number_of, settings_of
from mlflow_stability.vocabulary.result import RunCard, Sensitivity

MIN_RATES = 3
MAX_RATES, RUNS_PER_BIN = 10, 5
"""Of runs that differ in more than the rate."""
MEASURED = "the highest learning rate that was measured"
_RATE = re.compile(
    r"(?:^|[._/ -])(?:(?:base|max|peak|init(?:ial)?)_?)?(?:lr|learning_?rate)(?:_?(?:max|peak|init))?$", re.I
)

RatedRun = tuple[float, RunCard]  # a run with its learning rate


def sensitivity_of(cards: Sequence[RunCard]) -> tuple[Sensitivity | None, str]:
    """Return the sensitivity over runs with a known rate and loss, and what it leaves out; None under three rates."""
    rates = [(rate, card) for card in cards if (rate := _rate_of(card)) is not None and _loss(card) is not None]
    names = {name for (name, _), _ in rates}
    runs = [(rate, card) for (_, rate), card in rates]
    if len(names) != 1 or _count_rates(runs) < MIN_RATES:
        return None, ""
    name = names.pop()
    sweeps = _with_common_rates(_sweeps(runs, name))
    if not sweeps:
        note = "Learning-rate sensitivity: no sweep over the learning rate alone, so all runs are taken together."
        return _sensitivity(name, [_binned(runs)]), note
    count = sum(map(len, sweeps))
    note = (
        f"What the learning rate does in {len(runs) - count} of {len(runs)} runs: they differ from the other "
        f"{count} in more than the rate, have rates that those have not, or were stopped early."
    )
    return _sensitivity(name, sweeps), "" if count == len(runs) else note


def _rate_of(card: RunCard) -> tuple[str, float] | None:
    """Return the parameter of the learning rate, and its value; else the highest rate that was measured."""
    for name in sorted(card.params, key=lambda name: (len(name), name)):
        value = number_of(card.params[name]) if _RATE.search(name) else None
        if value is not None and value > 0:
            return name, value
    measured = card.peak_learning_rate
    return (MEASURED, measured) if measured is not None and math.isfinite(measured) and measured > 0 else None


def _loss(card: RunCard) -> float | None:
    """Return the final loss, never above the first one."""
    first, final = card.first_loss, card.final_loss
    if first is None or not math.isfinite(first):
        return None
    return first if final is None or card.lost or not math.isfinite(final) else min(first, final)


def _count_rates(runs: Sequence[RatedRun]) -> int:
    return len({rate for rate, _ in runs})


def _sweeps(runs: Sequence[RatedRun], name: str) -> list[list[RatedRun]]:
    """Group runs that differ in the rate alone, without those that were stopped early."""
    settings = settings_of([card for _, card in runs])
    rates = np.array([rate for rate, _ in runs])
    params = {param for setting in settings for param in setting}
    moving = {param for param in params if param == name or _moves_with(rates, settings, param)}
    groups: dict[tuple[tuple[str, str], ...], list[RatedRun]] = {}
    for run, setting in zip(runs, settings, strict=True):
        key = tuple((param, value) for param, value in setting.items() if param not in moving)
        groups.setdefault(key, []).append(run)
    sweeps = []
    for group in groups.values():
        early = {card.source for card in stopped_early([card for _, card in group])}
        sweeps.append([(rate, card) for rate, card in group if card.source not in early])
    return [sweep for sweep in sweeps if _count_rates(sweep) >= MIN_RATES]


def _moves_with(rates: np.ndarray, settings: Sequence[Mapping[str, str]], param: str) -> bool:
    numbers = [number_of(setting.get(param, "")) for setting in settings]
    if None in numbers:
        return False
    correlation = rank_correlation(rates, np.array(numbers, np.float64))
    return correlation is not None and abs(correlation) > 1 - 1e-9


def _with_common_rates(sweeps: Sequence[list[RatedRun]]) -> list[list[RatedRun]]:
    """Cut the sweeps to the rates that all of them have; if these are too few, return the largest sweep alone."""
    if not sweeps:
        return []
    common = set.intersection(*({rate for rate, _ in sweep} for sweep in sweeps))
    if len(common) < MIN_RATES:
        return [max(sweeps, key=len)]
    return [[run for run in sweep if run[0] in common] for sweep in sweeps]


def _binned(runs: Sequence[RatedRun]) -> list[RatedRun]:
    """Replace rates by the geometric mean of their bin if there are too many."""
    if _count_rates(runs) <= MAX_RATES:
        return list(runs)
    ordered = sorted(runs, key=lambda run: run[0])
    binned = []
    bins = max(MIN_RATES, min(MAX_RATES, len(ordered) // RUNS_PER_BIN))
    for places in np.array_split(np.arange(len(ordered)), bins):
        middle = math.exp(float(np.mean([math.log(ordered[place][0]) for place in places])))
        binned += [(middle, ordered[place][1]) for place in places]
    return binned


def _sensitivity(name: str, sweeps: Sequence[list[RatedRun]]) -> Sensitivity:
    rates = sorted({rate for sweep in sweeps for rate, _ in sweep})
    by_rate = [[[card for other, card in sweep if other == rate] for sweep in sweeps] for rate in rates]
    losses = [float(np.mean([np.mean([_loss(card) or 0.0 for card in cards]) for cards in at])) for at in by_rate]
    every = [[card for cards in at for card in cards] for at in by_rate]
    unstable = [float(np.mean([card.unstable is True for card in cards])) for cards in every]
    best = int(np.argmin(losses))
    first_unstable = next((place for place, share in enumerate(unstable) if share > 0), len(rates))
    return Sensitivity(
        name,
        tuple(rates),
        tuple(losses),
        tuple(unstable),
        tuple(map(len, every)),
        rates[best],
        rates[first_unstable - 1] if first_unstable else None,
        float(np.mean(losses) - losses[best]),
    )
