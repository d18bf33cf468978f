"""Find causes in the size of updates, and how much lower the learning rate has to be.

Large updates alone are no cause: weights that start at zero have them. First updates are too large only if the learning
rate was at its highest from the first step on and the loss rose at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import Check, CheckResult, cause_found, not_checked, ruled_out
from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.diagnosis.recorded_settings import default_rate, is_adam, may_follow_scale
from mlflow_stability.kinds.first_look.loss_function import LossSum
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishing
from mlflow_stability.kinds.optimizer.update_size_curve import LargeUpdatesFacts, fell_by
from mlflow_stability.kinds.reported.rollback import Rollback, RollbackFacts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Thresholds of the causes in the size of updates, as shares of the weight norm where not noted otherwise."""

    absurd: float = 0.1  # size of an update that overwrites much of the weights; 0.001 is usual
    usual: float = 0.001  # size of the updates of a training that learns well
    most_raised: float = 1000.0  # by how many times a learning rate is raised at most
    usual_first: float = 0.01  # size up to which the first updates of a training are normal
    usual_later: float = 0.003  # size up to which updates of a transformer that learns well are normal
    first_points: int = 32  # number of points, or a twentieth of the run, that are the first steps of an episode
    left_start: float = 3.0  # ratio of a loss to its first value above which updates follow from the rise
    learned: float = 0.8  # share of its first value below which a loss tolerated the updates until then
    first_steps: int = 4  # number of steps whose updates are first ones
    large: float = 0.02  # minimum size of a first update that is too large
    no_warm_up: float = 0.9  # minimum share of its highest value of a first learning rate that was not warmed up
    usual_rate: float = 1e-3  # learning rate above which small updates have another reason
    moved: float = 0.03  # sum of all update ratios of a plateau up to which steps were too small to learn anything
    rose: float = 1.05  # minimum ratio of the loss after the first two updates to that before them


LIMITS = StepLimits()
KINDS_OF_LARGE_STEPS = ("update_ratio_high", "weight_spike")  # large steps do not explain a finding of large steps


def step_size_check(context: EpisodeContext) -> CheckResult | None:
    """Check whether one of the first updates was too large for any training."""
    episode, ratio, loss = context.episode, context.model_curve("update_ratio"), context.loss
    if ratio is None or loss is None or len(loss.values) < 2 or episode.kind in KINDS_OF_LARGE_STEPS:
        return None
    early = context.is_early or episode.start - int(loss.steps[0]) <= LIMITS.first_points * loss.distance
    if not (early and context.span.begins_training) or _is_at_default(context):
        return None
    until = episode.end + LIMITS.first_steps * loss.distance
    if episode.recovered and not any(episode.start <= event.step <= until for event in context.events_of("rollback")):
        return None  # it recovered by itself
    losses, steps = loss.values[loss.finite], loss.steps[loss.finite]
    if len(losses) < 2 or losses[0] <= 0:
        return None
    is_high = (losses >= LIMITS.left_start * losses[0]) & (steps <= max(episode.start, episode.peak))
    if not is_high.any() and episode.kind != "divergence":
        return None
    end = min(episode.start, int(steps[is_high].min(initial=episode.start)))
    usable = ratio.finite & (ratio.steps <= end)
    if float(losses[steps <= end].min()) < LIMITS.learned * losses[0] or not usable.any():
        return None
    worst = int(np.argmax(np.where(usable, ratio.values, -np.inf)))
    update = float(ratio.values[worst])
    return _too_high(context, update, int(ratio.steps[worst])) if update >= LIMITS.absurd else None


def _is_at_default(context: EpisodeContext) -> bool:
    """Return whether no learning rate exceeds the default of an optimizer that scales its own steps."""
    default = default_rate(context.history)
    highest = max((float(rate.values[rate.finite].max(initial=0.0)) for rate in context.rates), default=0.0)
    return default is not None and not is_adam(context.history) and 0 < highest <= default[1]


def _too_high(context: EpisodeContext, update: float, step: int, *effects: str) -> CheckResult:
    """Name the learning rate, with an update that shows it and sentences on its effects."""
    rate = _rate_at(context, step)
    value = "" if rate is None else f" of {rate:.3g}"
    sums = context.events_of(LossSum.kind) if may_follow_scale(context.history) else []
    share = f"{float(f'{update:.2g}'):,g} times their norm" if update >= 1 else f"{update:.0%} of their norm"
    statement = (
        f"The learning rate{value} is far too high: the update at {context.unit} {step} changed the weights by {share}."
    )
    return cause_found(
        "learning_rate_too_high",
        " ".join((statement, *effects, *(finding.message for finding in sums[:1]))),
        f"update ratio {update:.3g}; {LIMITS.usual_first:g} is large for a first step, 0.001 is usual later",
        since=step,
        remedies=(
            stable_rate(context, rate) or lower_by(rate, update / LIMITS.usual_first),
            *(LossSum.remedies if sums else ()),
        ),
    )


def stable_rate(context: EpisodeContext, rate: float | None) -> Remedy | None:
    """Return a remedy with the rate at which the training went on well after its last rollback, if there is one."""
    events = [event for event in context.events_of(Rollback.kind) if event.step >= context.episode.start]
    if rate is None or not context.episode.recovered or not events:
        return None
    facts = events[-1].facts
    share = facts.learning_rate_share if isinstance(facts, RollbackFacts) else None
    later = (finding for finding in context.findings if finding.attempt == context.episode.attempt)
    is_stable = all(finding.start <= events[-1].step or finding.severity < Severity.WARNING for finding in later)
    if share is None or share >= 1 or not is_stable:
        return None
    return Remedy(Action.LOWER_LEARNING_RATE, baseline=rate, target=float(f"{rate * share:.2g}"))


def without_line_search_check(context: EpisodeContext) -> CheckResult:
    """Name the steps of LBFGS, which nothing bounds where it has no line search."""
    rate = _rate_at(context, context.latest)
    if context.before_any_update or rate is None:
        return not_checked("learning rate: LBFGS had taken no step, or its learning rate was not logged")
    where = ", within its first step" if context.is_inside_step and context.is_early else ""
    return cause_found(
        "learning_rate_too_high",
        f"LBFGS made the loss rise at a learning rate of {rate:.3g}{where}: without a line search nothing bounds its "
        "steps.",
        since=context.episode.start,
        certainty="likely" if context.is_early else "possible",
        remedies=(Remedy(Action.SEARCH_ALONG_LINE), LOWER_RATE_2_TO_5),
    )


def lower_by(rate: float | None, factor: float) -> Remedy:
    """Return a remedy that lowers the learning rate, with a target if the present one is known."""
    if rate is None:
        return Remedy(Action.LOWER_LEARNING_RATE, factor=factor)
    return Remedy(Action.LOWER_LEARNING_RATE, baseline=rate, target=float(f"{rate / factor:.1g}"), factor=factor)


def _rate_at(context: EpisodeContext, step: int) -> float | None:
    """Return the highest learning rate of all groups at a step, or None."""
    rates = []
    for rate in context.rates:
        values = rate.values[rate.finite]
        until = values[rate.steps[rate.finite] <= step]
        rates += until[-1:].tolist() or values[:1].tolist()
    return max(rates, default=0.0) or None


def _moved_weights(context: EpisodeContext) -> tuple[float, float, int]:
    """Return by which share of their norm all steps of an episode moved the weights at most, the share of one, and
    their number; infinite shares where no updates were measured.
    """
    ratio, episode = context.model_curve("update_ratio"), context.episode
    steps = max(1, episode.end - episode.start)
    updates = () if ratio is None else ratio.values[ratio.finite & (ratio.steps <= episode.end)]
    usual = float(np.mean(updates)) if len(updates) else math.inf
    return usual * steps, usual, steps


def hardly_moved(context: EpisodeContext) -> str:
    """Return that all steps of an episode hardly moved the weights; empty if they did, or if that is unknown."""
    moved, _, steps = _moved_weights(context)
    if moved > LIMITS.moved:
        return ""
    return f"{steps:,} {context.unit}s together moved the weights by {100 * moved:.2g}% at most"


def small_steps_check(context: EpisodeContext) -> CheckResult:
    """Check whether all steps together hardly moved the weights, though there were gradients."""
    ratio = context.model_curve("update_ratio")
    if ratio is None or not context.rates or context.findings_of(GradientVanishing.kind):
        return CheckResult()  # the check of the learning rate reports what was not logged
    moved, usual, steps = _moved_weights(context)
    top = max(float(rate.values[rate.finite].max(initial=0.0)) for rate in context.rates)
    if moved > LIMITS.moved or not 0 < top <= LIMITS.usual_rate:
        return CheckResult()
    factor = LIMITS.usual / usual if usual > 0 else math.inf
    factor = min(factor, LIMITS.most_raised)
    target = float(f"{top * factor:.1g}")
    return cause_found(
        "learning_rate_too_low",
        f"The learning rate is too low: {steps:,} {context.unit}s together moved the weights by at most "
        f"{100 * moved:.2g}% of their norm, at rates up to {top:.3g}.",
        since=int(ratio.steps[0]),
        remedies=(Remedy(Action.RAISE_LEARNING_RATE, baseline=top, target=target, factor=factor),),
    )


def first_updates_large(context: EpisodeContext) -> bool:
    """Return whether an update before the episode was too large for initial weights; True if none was measured."""
    ratio = context.model_curve("update_ratio")
    updates = np.zeros(0) if ratio is None else context.before(ratio)
    return not len(updates) or float(updates.max()) >= LIMITS.large


def first_steps_check(context: EpisodeContext) -> CheckResult:
    """Check whether the first updates damaged the initial weights."""
    loss, ratio = context.loss, context.model_curve("update_ratio")
    if not context.span.begins_training:
        return not_checked("first steps: the training was rolled back since")
    rates = [values for rate in context.rates if len(values := rate.values[rate.finite])]
    if not rates or ratio is None or loss is None or not context.every_step:
        return not_checked("first steps: learning rate, updates and loss of each of them were not logged")
    start, losses = int(loss.steps[0]), loss.values[:3]
    is_first = (ratio.steps < start + LIMITS.first_steps) & ratio.finite
    updates = ratio.values[is_first]
    if len(updates) == 0 or len(losses) < 3 or not np.isfinite(losses).all():
        return not_checked("first steps: updates were not measured")
    rate = max(rates, key=lambda values: float(values.max()))
    first_rate, top = float(rate[0]), float(rate.max())
    update, later_loss = float(updates.max()), float(losses[1:].max())
    rose = losses[0] > 0 and later_loss >= LIMITS.rose * losses[0]
    ended = None if rose or update < LIMITS.absurd else _end_of_gradients(context)
    if first_rate < LIMITS.no_warm_up * top or update < LIMITS.large or not (rose or ended):
        return ruled_out(
            f"missing warm-up: first update {update:.2%} of the weights, learning rate {first_rate:.3g} (highest "
            f"{top:.3g})"
        )
    if _is_at_default(context):
        return not_checked(f"missing warm-up: the learning rate {first_rate:.3g} is the default of the optimizer")
    effect = f"the loss rose from {losses[0]:.3g} to {later_loss:.3g} on"
    if update >= LIMITS.absurd:
        then = ended or f"{effect.capitalize()} it."
        return _too_high(context, update, int(ratio.steps[is_first][int(np.argmax(updates))]), then)
    return cause_found(
        "no_warm_up",
        f"No warm-up: the learning rate was {first_rate:.3g}, its highest, from the first step on. The first updates "
        f"changed the weights by up to {update:.1%} of their norm, and {effect} them.",
        "an update usually changes 0.1 % of the weights",
        since=start,
    )


def _end_of_gradients(context: EpisodeContext) -> str:
    """Return since when there are no gradients any more; empty unless that is soon after the start."""
    norm = context.model_curve("grad_norm")
    if norm is None:
        return ""
    steps, values = norm.steps[norm.finite], norm.values[norm.finite]
    present = np.flatnonzero(values >= GradientVanishing().smallest)
    if not len(present) or present[-1] + 1 >= len(values):
        return ""
    since = int(steps[present[-1] + 1])
    if since - int(steps[0]) > LIMITS.first_points * norm.distance:
        return ""
    return f"From {context.unit} {since} on there are no gradients: the first updates saturated or killed all units."


def lasting_updates_check(context: EpisodeContext) -> CheckResult:
    """Check whether updates that stayed large to the end kept the loss from falling."""
    facts, rate = context.episode.facts_as(LargeUpdatesFacts), _rate_at(context, context.episode.end)
    if facts is None or rate is None:
        return CheckResult()
    ratio = facts.update_ratio
    return cause_found(
        "learning_rate_too_high",
        f"At a learning rate of {rate:.3g} each update was {ratio:.1%} of the weight norm: {1 / ratio:.0f} steps "
        f"change the weights by as much as they hold, and the loss {fell_by(facts.late_fall, 'only ')}.",
        "an update usually changes 0.1 % of the weights",
        since=context.episode.start,
        remedies=(lower_by(rate, min(10.0, max(5.0, ratio / LIMITS.usual_later))),),
    )


CHECKS = (
    Check(first_steps_check, {Symptom.STUCK: 10, Symptom.VANISHING: 10}),
    Check(small_steps_check, {Symptom.STUCK: 35}, frozenset({"learning_rate_too_low"})),
    Check(lasting_updates_check, {Symptom.LARGE_UPDATES: 5}, frozenset({"learning_rate_too_high"})),
)
