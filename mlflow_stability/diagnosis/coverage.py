"""What of a run cannot be judged, and why."""

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
from mlflow_stability.vocabulary.text import counted, some_of

RISE_KINDS = frozenset({"loss_spike", "divergence", "divergence_ahead"})
PROGRESS_KINDS = frozenset({"plateau", "slow_progress", "oscillation", "periodic_loss"})
LOSS_KINDS = RISE_KINDS | PROGRESS_KINDS
VALIDATION_KINDS = frozenset({"overfitting"})
GRADIENT_KINDS = frozenset(
    {"gradient_explosion", "gradient_vanishing", "gradient_imbalance", "layer_explosion", "dead_layer"}
)
MIN_LATER_POINTS, MIN_LATER_SHARE = 10, 0.05
"""The loss has stopped if another metric has this number and this share of its points after the last loss."""
MIN_COMMON_SHARE = 0.5
"""A metric is logged together with the loss if it has a value at this share of the loss's steps."""
MAX_GAPS = 5
"""Maximum number of gaps that are listed."""


def loss_that_stopped(history: RunHistory) -> str:
    """Return a clause if the loss stops while what is logged together with it continues: that end says nothing."""
    losses = [metric for metric in history.of("loss") if len(metric.series)]
    if not losses:
        return ""
    main = max(losses, key=_last)
    (attempt, last), unit = _last(main), history.step_unit
    loss_steps = main.series.steps[main.series.attempts == attempt]
    for metric in history.metrics:
        steps = metric.series.steps[metric.series.attempts == attempt]
        is_loss = metric.meaning.quantity in ("loss", "val_loss")
        if metric.meaning.bookkeeping or is_loss or len(steps) < MIN_LATER_POINTS:
            continue
        later = int((steps > last).sum())
        together = np.isin(loss_steps, steps).mean() >= MIN_COMMON_SHARE
        if later >= max(MIN_LATER_POINTS, MIN_LATER_SHARE * len(steps)) and together:
            return (
                f"{main.name} has no value after {unit} {last}, but {metric.name} continues to "
                f"{unit} {int(steps.max())}"
            )
    return ""


def _last(metric: Metric) -> tuple[int, int]:
    series = metric.series
    attempt = int(series.attempts.max())
    return attempt, int(series.steps[series.attempts == attempt].max())


def single_loss(history: RunHistory) -> str:
    """Return a clause if a loss was logged once only, so that there is no curve."""
    losses = [metric for quantity in ("loss", "val_loss") for metric in history.of(quantity) if len(metric.series)]
    if not losses or any(len(metric.series) > 1 for metric in losses):
        return ""
    value, step = float(losses[0].series.values[0]), int(losses[0].series.steps[0])
    return f"{losses[0].name} has a single point, {value:.4g} at {history.step_unit} {step}"


def limits_of(history: RunHistory, curves: RunCurves) -> tuple[NotJudged, ...]:
    """Return what could not be judged."""
    limits: list[NotJudged] = []
    losses = [curve for curve in curves.losses if not curve.part]
    if not losses:
        reason = single_loss(history) or "no training loss was logged"
        limits.append(NotJudged(f"Spikes, divergence and plateaus of the training loss: {reason}.", LOSS_KINDS))
    else:
        longest = max(losses, key=lambda curve: len(curve.values))
        points = len(longest.values)
        for judged, kinds, needed in (
            ("Spikes and divergence", RISE_KINDS, max(SpikeRule().fewest_points, DivergenceRule().fewest_points)),
            ("Plateaus", PROGRESS_KINDS, PlateauRule().fewest_points),
        ):
            if points < needed:
                sentence = f"{judged}: {longest.name} has {counted(points, 'point')}, {needed} are needed."
                limits.append(NotJudged(sentence, kinds))
        limits += [NotJudged(sentence, LOSS_KINDS) for sentence in _unjudged_levels(losses)]
    stopped = loss_that_stopped(history)
    if stopped:
        limits.append(NotJudged(f"The end of the training: {stopped}."))
    validations = max((len(curve.values) for curve in curves.validations), default=0)
    needed = OverfittingRule().fewest_validations
    if not validations:
        limits.append(NotJudged("Overfitting: no validation loss was logged.", VALIDATION_KINDS))
    elif validations < needed:
        sentence = f"Overfitting: {counted(validations, 'validation')}, {needed} are needed."
        limits.append(NotJudged(sentence, VALIDATION_KINDS))
    if not curves.norms:
        limits.append(NotJudged("Gradients: no gradient norm was logged.", GRADIENT_KINDS))
    if history.gaps:
        missing = ", ".join(f"{gap.first_step}-{gap.last_step}" for gap in history.gaps[:MAX_GAPS])
        limits.append(NotJudged(f"Steps missing from the record: {missing}."))
    return tuple(limits)


def _unjudged_levels(losses: Sequence[Curve]) -> list[str]:
    """Return a sentence for each reason why losses were not judged by their level."""
    names: dict[str, dict[str, None]] = {}
    for curve in losses:
        if not curve.has_level:
            names.setdefault(reason_words(curve.level), {})[curve.name] = None
    return [
        f"The level of {some_of(list(metrics))} was not judged: {reason}. Judged were non-finite values, a growth by a "
        f"factor of {LOSS_RISE:,.0f}, gradients, weights and layers, as far as they were recorded."
        for reason, metrics in names.items()
    ]
