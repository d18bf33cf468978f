"""Summarise many runs: variation over seeds, survival, sensitivity to the learning rate, associated parameters."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from mlflow_stability.diagnosis.cohort.association_tests import holm, p_value_of, rank_correlation
from mlflow_stability.diagnosis.cohort.associations import AssociationResult, associations_of
from mlflow_stability.diagnosis.cohort.features import NOT_SET, Exposure, Feature
from mlflow_stability.diagnosis.cohort.seed_groups import MIN_SEEDS, groups_of_seeds, seed_groups_of, stopped_early
from mlflow_stability.diagnosis.parameters import number_of, settings_of
from mlflow_stability.vocabulary.result import Cohort, ParamPlot, RunCard, SeedGroup, Sensitivity, SurvivalCurve
from mlflow_stability.vocabulary.text.phrases import counted

MIN_RATES = 3
MAX_RATES, RUNS_PER_BIN = 10, 5  # of runs that differ in more than the rate
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
    sweeps = _sweeps(runs, name)
    if not sweeps:
        note = "Learning-rate sensitivity: no sweep over the learning rate alone, so all runs are taken together."
        return _sensitivity(name, [_binned(runs)]), note
    common = set.intersection(*({rate for rate, _ in sweep} for sweep in sweeps))
    if len(common) < MIN_RATES:
        sweeps = [max(sweeps, key=len)]
    else:
        sweeps = [[run for run in sweep if run[0] in common] for sweep in sweeps]
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


MIN_RUNS_A_SIDE = 3  # runs on either side of a test
MAX_PARTS = 6  # parts that are drawn: those that lost the smallest and the largest shares of their runs


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
    shown = kept
    if len(kept) > MAX_PARTS:
        shares = [sum(card.divergence is not None for card in part) / len(part) for _, part in kept]
        order = sorted(range(len(kept)), key=lambda place: shares[place])
        few = MAX_PARTS // 2
        shown = [kept[place] for place in sorted((*order[:few], *order[few - MAX_PARTS :]))]
    curves = [replace(_curve(label, part), p_value=_p_value(part, observed)) for label, part in shown]
    tested = [curve.p_value for curve in curves if curve.p_value is not None]
    if len(kept) > 2 or sum(len(part) for _, part in kept) < len(observed):  # two halves are one and the same test
        unseen = [1.0] * (len(kept) - len(shown))  # parts that were compared when these were chosen
        adjusted = iter(holm([*tested, *unseen]))
        curves = [curve if curve.p_value is None else replace(curve, p_value=next(adjusted)) for curve in curves]
    return (all_runs, *curves)


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
        band = curve.confidence_interval(method="log-log") if len(cards) >= MIN_RUNS_A_SIDE else None
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
    if min(inside.sum(), len(observed) - inside.sum()) < MIN_RUNS_A_SIDE:
        return None
    steps = np.array([_steps(card) for card in observed], np.float64)
    lost = np.array([card.divergence is not None for card in observed], bool)
    feature = Feature("part", inside, ("others", "part"))
    return p_value_of(feature, Exposure(steps, lost, np.arange(len(observed))), tests=MAX_PARTS)


MIN_RUNS = 3  # fewer runs are compared one by one
MAX_PLOTS = 6  # parameters that are drawn, unless more are associated with instability


def cohort_of(cards: Sequence[RunCard]) -> Cohort | None:
    """Summarise the runs; None for fewer than three readable ones."""
    readable = [card for card in cards if card.readable]
    if len(readable) < MIN_RUNS:
        return None
    result = associations_of(readable)
    repeated = groups_of_seeds(readable)
    groups = seed_groups_of(repeated)
    sensitivity, left_out = sensitivity_of(readable)
    return Cohort(
        runs=len(readable),
        unstable=sum(card.unstable is True for card in readable),
        groups=groups,
        survival=survival_of(readable, _survival_parts(readable, groups, result)),
        sensitivity=sensitivity,
        associations=result.associations,
        plots=_plots(result),
        tested=tuple(feature.name for feature in result.features),
        undecided=result.undecided,
        confounded=result.warnings,
        cannot_tell=(*result.cannot_tell, *_not_judged(readable, repeated), *([left_out] if left_out else [])),
    )


def _survival_parts(
    cards: Sequence[RunCard], groups: Sequence[SeedGroup], result: AssociationResult
) -> Mapping[str, Sequence[RunCard]]:
    """Return groups of repetitions if there are enough, else the strongest parameter's values, split in the middle."""
    large = [group for group in groups if len(group.sources) >= MIN_SEEDS]
    if len(large) >= 2:
        by_source = {card.source: card for card in cards}
        return {group.label: [by_source[source] for source in group.sources] for group in large}
    if not result.named:
        return {}
    feature = next(feature for feature in result.features if feature.name == result.associations[0].params[0])
    values = feature.values
    if feature.numeric:
        numbers = values[~np.isnan(values)]
        middle = float(np.median(numbers))
        if middle == numbers.max():  # more than half of the runs have the highest value
            middle = float(numbers[numbers < middle].max())
        sides = {
            f"{feature.name} ≤ {middle:.3g}": values <= middle,
            f"{feature.name} > {middle:.3g}": values > middle,
            f"{feature.name} {NOT_SET}": np.isnan(values),
        }
    else:
        sides = {f"{feature.name} {level}": values == place for place, level in enumerate(feature.levels)}
    return {
        label: [card for card, inside in zip(result.judged, side, strict=True) if inside]
        for label, side in sides.items()
    }


def _plots(result: AssociationResult) -> tuple[ParamPlot, ...]:
    """Plot associated parameters first, then the others in the order of the features."""
    named = result.named
    order = sorted(
        result.features, key=lambda feature: named.index(feature.name) if feature.name in named else len(named)
    )
    return tuple(
        ParamPlot(
            feature.name,
            tuple(feature.values.tolist()),
            feature.levels,
            tuple(bool(card.unstable) for card in result.judged),
            tuple(card.final_loss for card in result.judged),
            feature.name in named,
        )
        for feature in order[: max(MAX_PLOTS, len(named))]
    )


def _not_judged(cards: Sequence[RunCard], repeated: Sequence[Sequence[RunCard]]) -> list[str]:
    sentences = []
    most = max(map(len, repeated))
    if most < 2:
        sentences.append("Variation over seeds: no two runs differ only in the seed.")
    elif most < MIN_SEEDS:
        sentences.append(f"Variation over seeds: at most {most} seeds of one setting, {MIN_SEEDS} are needed.")
    early = sum(len(stopped_early(group)) for group in repeated if len(group) > 1)
    if early:
        sentences.append(f"Final loss of {counted(early, 'run')}: stopped early, and not counted over seeds.")
    unjudged = sum(card.unstable is None for card in cards)
    if unjudged:
        sentences.append(f"Stability of {unjudged} of the runs: too short, or without a loss.")
    return sentences
