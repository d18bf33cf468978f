"""Looks for the cause in the size of updates, and says how much lower the learning rate has to be.

Large updates are no cause where the training went on well from them: weights that start at zero have such. First
updates are too large only where the rate was at its highest from the first step on and the loss rose at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.diagnosis.parameters.recorded_settings import default_rate, is_adam
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishing
from mlflow_stability.kinds.optimizer.update_ratio import LargeUpdatesFacts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Thresholds of the causes in the size of updates, as shares of the weight norm where nothing else is said."""

    absurd: float = 0.1
    """An update that leaves little of what the weights held; 0.001 is usual."""
    usual_first: float = 0.01
    """Size up to which the first updates of a training are normal."""
    usual_later: float = 0.003
    """Size up to which updates of a transformer that learns well are normal."""
    first_points: int = 32
    """Number of points, or a twentieth of the run, in which a beginning is one of the first steps."""
    left_start: float = 3.0
    """Ratio of a loss to its first value from which on updates follow from the rise."""
    learned: float = 0.8
    """Share of its first value below which a loss tolerated the updates until then."""
    first_steps: int = 4
    """Number of steps whose updates are first ones."""
    large: float = 0.02
    """Minimum size of a first update that is too large."""
    no_warm_up: float = 0.9
    """Share of its highest value from which on a first learning rate was not warmed up."""
    usual_rate: float = 1e-3
    """Learning rate above which small updates have another reason."""
    moved: float = 0.03
    """Sum of all update ratios of a plateau up to which steps were too small to learn anything."""
    rose: float = 1.05
    """Minimum ratio of the loss after the first two updates to that before them."""


LIMITS = StepLimits()
OF_STEPS = ("update_ratio_high", "weight_spike")
"""Findings that say no more than that steps are large are not explained by that."""


def step_size_check(around: EpisodeContext) -> CheckResult | None:
    """Whether the first updates were so large that no training stands them."""
    ratio = around.whole("update_ratio")
    if ratio is None or around.loss is None or len(around.loss.values) < 2 or around.episode.kind in OF_STEPS:
        return None
    if _at_its_default(around):
        return None
    first, start = int(around.loss.steps[0]), around.episode.start
    early = around.is_early or start - first <= LIMITS.first_points * around.loss.distance
    early = early and around.span.begins_training
    return _of_the_first(around, ratio, around.loss) if early and not around.episode.recovered else None


def _at_its_default(around: EpisodeContext) -> bool:
    """Whether no learning rate exceeds the default of an optimizer that scales its steps by itself."""
    known = default_rate(around.history)
    highest = max((float(each.values[each.finite].max(initial=0.0)) for each in around.rates), default=0.0)
    return known is not None and not is_adam(around.history) and 0 < highest <= known[1]


def too_high(around: EpisodeContext, update: float, step: int, *more: str) -> CheckResult:
    """The learning rate is too high, as this update shows; ``more``: what else is to be said of it."""
    rate = rate_at(around, step)
    of = "" if rate is None else f" of {shown(rate)}"
    moved = f"the update at {around.unit} {step} changed the weights by {share_of_weights(update)}"
    sentence = f"The learning rate{of} is far too high: {moved}."
    return is_it(
        "learning_rate_too_high",
        " ".join((sentence, *more)),
        f"update ratio {update:.3g}; {LIMITS.usual_first:g} is large for a first step, 0.001 is usual later",
        since=step,
        remedies=(lower_by(rate, update / LIMITS.usual_first),),
    )


def lower_by(rate: float | None, factor: float) -> Remedy:
    """What to do, with the rate to begin with where the present one is known."""
    if rate is None:
        return Remedy(Action.LOWER_LEARNING_RATE, factor=factor)
    return Remedy(Action.LOWER_LEARNING_RATE, baseline=rate, target=float(f"{rate / factor:.1g}"), factor=factor)


def share_of_weights(update: float) -> str:
    """An update beside the weights: "62 % of their norm", "4.4 times their norm"."""
    return f"{update:.2g} times their norm" if update >= 1 else f"{update:.0%} of their norm"


def rate_at(around: EpisodeContext, step: int) -> float | None:
    """The highest learning rate of all groups at a step; None: not logged."""
    known = []
    for rate in around.rates:
        values = rate.values[rate.finite & (rate.steps <= step)]
        known += [float(values[-1])] if len(values) else [float(each) for each in rate.values[rate.finite][:1]]
    return max(known, default=0.0) or None


def _of_the_first(around: EpisodeContext, ratio: Curve, loss: Curve) -> CheckResult | None:
    losses, steps = loss.values[loss.finite], loss.steps[loss.finite]
    if len(losses) < 2 or losses[0] <= 0:
        return None
    left = np.flatnonzero(
        (losses >= LIMITS.left_start * losses[0]) & (steps <= max(around.episode.start, around.episode.peak))
    )
    if not len(left) and around.episode.kind != "divergence":
        return None
    end = min(around.episode.start, int(steps[left[0]])) if len(left) else around.episode.start
    if float(losses[steps <= end].min()) < LIMITS.learned * losses[0]:
        return None
    usable = ratio.finite & (ratio.steps <= end)
    if not usable.any():
        return None
    worst = int(np.argmax(np.where(usable, ratio.values, -np.inf)))
    update = float(ratio.values[worst])
    return too_high(around, update, int(ratio.steps[worst])) if update >= LIMITS.absurd else None


def small_steps_check(around: EpisodeContext) -> CheckResult:
    """Whether all steps together hardly moved the weights, though there were gradients."""
    ratio = around.whole("update_ratio")
    if ratio is None or not around.rates or around.found(GradientVanishing.kind):
        return CheckResult()  # the check of the learning rate says what was not logged
    steps = max(1, around.episode.end - around.episode.start)
    there = ratio.finite & (ratio.steps <= around.episode.end)
    moved = float(ratio.values[there].mean()) * steps if there.any() else math.inf
    top = max(float(rate.values[rate.finite].max(initial=0.0)) for rate in around.rates)
    if moved > LIMITS.moved or not 0 < top <= LIMITS.usual_rate:
        return CheckResult()
    return is_it(
        "learning_rate_too_low",
        f"The learning rate is too low: {steps:,} {around.unit}s together moved the weights by at most {moved:.1%} of "
        f"their norm, at rates up to {shown(top)}.",
        since=int(ratio.steps[0]),
    )


def first_updates_large(around: EpisodeContext) -> bool:
    """Whether an update up to the beginning was too large for weights just drawn; True where none was measured."""
    ratio = around.whole("update_ratio")
    updates = np.zeros(0) if ratio is None else around.before(ratio)
    return not len(updates) or float(updates.max()) >= LIMITS.large


def first_steps_check(around: EpisodeContext) -> CheckResult:
    """Whether weights just drawn were hurt by the first updates."""
    if not around.span.begins_training:
        return not_seen("first steps: the training was rolled back since")
    rates = [each.values[each.finite] for each in around.rates]
    rates = [each for each in rates if len(each)]
    ratio = around.whole("update_ratio")
    if not rates or ratio is None or around.loss is None or not around.every_step:
        return not_seen("first steps: learning rate, updates and loss of each of them were not logged")
    start = int(around.loss.steps[0])
    first = (ratio.steps < start + LIMITS.first_steps) & ratio.finite
    updates = ratio.values[first]
    losses = around.loss.values[:3]
    rate = max(rates, key=lambda each: float(each.max()))
    if len(updates) == 0 or len(losses) < 3 or not np.isfinite(losses).all():
        return not_seen("first steps: updates were not measured")
    moved, rose = float(updates.max()), float(losses[1:].max() / losses[0]) if losses[0] > 0 else 0.0
    if float(rate[0]) < LIMITS.no_warm_up * float(rate.max()) or moved < LIMITS.large or rose < LIMITS.rose:
        return is_not(
            f"missing warm-up: first update {moved:.2%} of the weights, learning rate {shown(float(rate[0]))} "
            f"(highest {shown(float(rate.max()))})"
        )
    if _at_its_default(around):
        return not_seen(f"missing warm-up: the learning rate {shown(float(rate[0]))} is the default of the optimizer")
    answer = f"the loss rose from {shown(float(losses[0]))} to {shown(float(losses[1:].max()))} on"
    if moved >= LIMITS.absurd:
        return too_high(around, moved, int(ratio.steps[first][int(np.argmax(updates))]), f"T{answer[1:]} it.")
    return is_it(
        "no_warm_up",
        f"No warm-up: the learning rate was {shown(float(rate[0]))}, its highest, from the first step on. The first "
        f"updates changed the weights by up to {moved:.1%} of their norm, and {answer} them.",
        "an update usually changes 0.1 % of the weights",
        since=start,
    )


def lasting_updates_check(around: EpisodeContext) -> CheckResult:
    """Whether updates that stayed large to the end kept the loss from falling."""
    facts, rate = around.episode.known(LargeUpdatesFacts), rate_at(around, around.episode.end)
    if facts is None or rate is None:
        return CheckResult()
    ratio = facts.update_ratio
    return is_it(
        "learning_rate_too_high",
        f"At a learning rate of {shown(rate)} each update was {ratio:.1%} of the weight norm: {1 / ratio:.0f} steps "
        f"change the weights by as much as they hold, and the loss fell by only {facts.late_fall:.1%}.",
        "an update usually changes 0.1 % of the weights",
        since=around.episode.start,
        remedies=(lower_by(rate, min(10.0, max(5.0, ratio / LIMITS.usual_later))),),
    )


CHECKS = (
    Check(first_steps_check, {Symptom.STUCK: 10, Symptom.VANISHING: 10}),
    Check(small_steps_check, {Symptom.STUCK: 35}, frozenset({"learning_rate_too_low"})),
    Check(lasting_updates_check, {Symptom.LARGE_UPDATES: 5}, frozenset({"learning_rate_too_high"})),
)
