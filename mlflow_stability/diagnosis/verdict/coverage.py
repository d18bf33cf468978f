"""Says what of a run cannot be judged, and why: never a guess.

In: a history and its curves. Out: what was not judged; nothing where everything that is looked for could be looked for.

Says when a loss stops being logged while everything logged beside it goes on: such an end says nothing.

In: a run's history. Out: a sentence, empty where the loss goes on to the end; another for a loss that
has a single point.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.loss_level import LOSS_RISE
from mlflow_stability.kinds.loss.divergence_curve import DivergenceRule
from mlflow_stability.kinds.loss.loss_spike_curve import SpikeRule
from mlflow_stability.kinds.progress.overfitting import OverfittingRule
from mlflow_stability.kinds.progress.plateau import PlateauRule
from mlflow_stability.vocabulary.loss_level import reason_words
from mlflow_stability.vocabulary.result import NotJudged
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text import counted

OF_RISES = frozenset({"loss_spike", "divergence", "divergence_ahead"})
OF_PROGRESS = frozenset({"plateau", "slow_progress", "oscillation", "periodic_loss"})
OF_LOSS = OF_RISES | OF_PROGRESS
OF_VALIDATION = frozenset({"overfitting"})
OF_GRADIENTS = frozenset(
    {"gradient_explosion", "gradient_vanishing", "gradient_imbalance", "layer_explosion", "dead_layer"}
)
"""Kinds of findings that need the same curves."""
FEWEST, SHARE = 10, 0.05
"""So many points of another metric, and this share of all it has, lie behind the last loss."""
BESIDE = 0.5
"""A metric is logged beside the loss if it has a value at this share of the loss's steps."""


def loss_that_stopped(history: RunHistory) -> str:
    """That the loss is missing at the end."""
    losses = [each for each in history.of("loss") if len(each.series)]
    if not losses:
        return ""
    main = max(losses, key=_last)
    (attempt, last), unit = _last(main), history.step_unit
    steps = main.series.steps[main.series.attempts == attempt]
    for other in history.metrics:
        mine = other.series.steps[other.series.attempts == attempt]
        if other.meaning.bookkeeping or other.meaning.quantity in ("loss", "val_loss") or len(mine) < FEWEST:
            continue
        behind = int((mine > last).sum())
        if behind >= max(FEWEST, SHARE * len(mine)) and np.isin(steps, mine).mean() >= BESIDE:
            return (
                f"{main.name} has no value after {unit} {last}, but {other.name} continues to {unit} {int(mine.max())}"
            )
    return ""


def single_loss(history: RunHistory) -> str:
    """That a loss was logged once and never again, so that there is no curve; empty where there is one, or none."""
    losses = [each for quantity in ("loss", "val_loss") for each in history.of(quantity) if len(each.series)]
    if not losses or any(len(each.series) > 1 for each in losses):
        return ""
    value = float(losses[0].series.values[0])
    return f"{losses[0].name} has a single point, {value:.4g} at {history.step_unit} {int(losses[0].series.steps[0])}"


def _last(metric: Metric) -> tuple[int, int]:
    series = metric.series
    attempt = int(series.attempts.max())
    return attempt, int(series.steps[series.attempts == attempt].max())


def limits_of(history: RunHistory, curves: RunCurves) -> tuple[NotJudged, ...]:
    """What could not be judged."""
    found: list[NotJudged] = []
    losses = [curve for curve in curves.losses if not curve.part]
    single = single_loss(history)
    if not losses and single:
        found.append(NotJudged(f"Spikes, divergence and plateaus of the training loss: {single}.", OF_LOSS))
    elif not losses:
        sentence = "Spikes, divergence and plateaus of the training loss: no training loss was logged."
        found.append(NotJudged(sentence, OF_LOSS))
    else:
        longest = max(losses, key=lambda curve: len(curve.values))
        points = len(longest.values)
        for judged, kinds, needed in (
            ("Spikes and divergence", OF_RISES, max(SpikeRule().fewest_points, DivergenceRule().fewest_points)),
            ("Plateaus", OF_PROGRESS, PlateauRule().fewest_points),
        ):
            if points < needed:
                sentence = f"{judged}: {longest.name} has {counted(points, 'point')}, {needed} are needed."
                found.append(NotJudged(sentence, kinds))
        found += [NotJudged(sentence, OF_LOSS) for sentence in unjudged_levels(losses)]
    silence = loss_that_stopped(history)
    if silence:
        found.append(NotJudged(f"The end of the training: {silence}."))
    validations = max((len(curve.values) for curve in curves.validations), default=0)
    if not validations:
        found.append(NotJudged("Overfitting: no validation loss was logged.", OF_VALIDATION))
    elif validations < OverfittingRule().fewest_validations:
        needed = OverfittingRule().fewest_validations
        sentence = f"Overfitting: {counted(validations, 'validation')}, {needed} are needed."
        found.append(NotJudged(sentence, OF_VALIDATION))
    if not curves.norms:
        found.append(NotJudged("Gradients: no gradient norm was logged.", OF_GRADIENTS))
    if history.gaps:
        missing = ", ".join(f"{gap.first_step}-{gap.last_step}" for gap in history.gaps[:5])
        found.append(NotJudged(f"Steps missing from the record: {missing}."))
    return tuple(found)


def unjudged_levels(losses: Sequence[Curve]) -> list[str]:
    """Which losses were not judged by their level, and why: a sentence for each reason."""
    names: dict[str, list[str]] = {}
    for curve in losses:
        if not curve.has_level:
            names.setdefault(reason_words(curve.level), []).append(curve.name)
    return [
        f"The level of {_listed(found)} was not judged: {reason}. Judged were non-finite values, a growth by a factor "
        f"of {LOSS_RISE:,.0f}, gradients, weights and layers, as far as they were recorded."
        for reason, found in names.items()
    ]


def _listed(names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:3]) + (f" and {len(unique) - 3} more" if len(unique) > 3 else "")
