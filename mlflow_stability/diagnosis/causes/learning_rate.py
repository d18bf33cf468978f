"""Find causes in the learning rate: a jump, a missing warm-up, a rate that is too high or too low.

A rate at which the loss had fallen for a while is ruled out. One that is higher than all before may be the cause, and
one at which nothing was learned cannot be ruled out. Jumps are those of the detector, which accepts warm restarts and
warm-ups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, after_last, curves_of
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import CauseType, Check, CheckResult, cause_found, not_checked, ruled_out
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext, jumps_in, restart_before
from mlflow_stability.diagnosis.causes.step_size import LIMITS as STEP_LIMITS
from mlflow_stability.diagnosis.causes.step_size import (
    first_updates_large,
    hardly_moved,
    lower_by,
    stable_rate,
    step_size_check,
    without_line_search_check,
)
from mlflow_stability.diagnosis.recorded_settings import default_rate, is_adam, settings_of
from mlflow_stability.kinds.loss.divergence_rules import ResumeFacts
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJump
from mlflow_stability.vocabulary.facts import LossRiseFacts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, WARM_UP_LEARNING_RATE, Action, Remedy
from mlflow_stability.vocabulary.text.phrases import counted


@dataclass(frozen=True, slots=True)
class RateLimits:
    across_resume: float = 1.5  # minimum ratio of a learning rate to that before a resume to be a jump
    high_for_adam: float = 0.01  # optimizers of the Adam family rarely tolerate a higher learning rate
    high: float = 0.1  # unknown optimizers rarely tolerate a higher learning rate
    far_too_high: float = 10.0  # factor on the rate that an optimizer tolerates that is too high with any schedule
    above_default: float = 10.0  # factor on its default learning rate that a known optimizer tolerates
    usual_momentum: float = 0.9
    """Momentum of SGD that these rates are for. A constant gradient moves a weight by 1 / (1 - momentum) times the
    learning rate, so that with more momentum a lower one is tolerated."""
    high_for_any: float = 1.0
    """Learning rate of SGD or an unknown optimizer from ten times which on first steps are far too large."""
    too_low: float = 1e-08  # learning rate up to which no weight moves
    almost_nothing: float = 0.001  # share of its highest value below which a learning rate is almost nothing
    low_share: float = 0.5  # minimum share of the run at such a rate for it to be the reason
    constant: float = 0.001  # share of its change just before up to which a learning rate is constant
    risen: float = 1.05  # minimum ratio of a learning rate to the start of its rise for the rise to be a reason
    tolerated_later: float = 1.4  # a rate that later rose by this factor in a training that went well was not too high
    recent_points: int = 100  # number of points before an episode whose learning rate is compared with all before them
    raised: float = 2.0  # minimum factor on the highest learning rate before them
    tolerated: float = 0.95  # minimum share of the present learning rate at which an earlier one was as high
    learned: float = 0.9  # share of its first values, and below all of them, to which a loss must fall to have learned
    min_losses: int = 16  # minimum number of losses at a learning rate that show whether it was tolerated
    ends: int = 5  # number of points at either end whose median is compared
    in_rise: float = 0.25  # share of the way from its baseline to its value when found of a loss that is part of a rise


LIMITS = RateLimits()
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How high a learning rate an optimizer tolerates."""

    optimizer: str  # as in sentences: ``SGD with momentum 0.99``
    rate: float
    far_too_high: float  # above this it is too high whatever the schedule
    memory: float = 0.0  # number of steps whose gradients momentum adds up; a loss that fell for fewer shows nothing
    usual_rate: float = 0.0  # the rate that it tolerates with usual momentum, where its own is higher

    def remedies(self, rate: float, factor: float) -> tuple[Remedy, ...]:
        """Return what to do about a rate that is too high; where a usual momentum tolerates it, lower the momentum."""
        lower = lower_by(rate, factor)
        return (Remedy(Action.LOWER_MOMENTUM), lower) if rate <= self.usual_rate else (lower,)


def tolerance_of_optimizer(context: EpisodeContext) -> Tolerance:
    """Return the tolerance of the optimizer in use; of an unknown one, what most tolerate."""
    default, far = default_rate(context.history), LIMITS.far_too_high
    if _earlier_rate(context, context.episode.start) is not None:
        return Tolerance("an optimizer", LIMITS.high, far * LIMITS.high_for_any)
    if is_adam(context.history) and (default is None or default[1] * LIMITS.above_default <= LIMITS.high_for_adam):
        return Tolerance("Adam", LIMITS.high_for_adam, far * LIMITS.high_for_adam)
    if default is None:
        return Tolerance("an optimizer", LIMITS.high, far * LIMITS.high_for_any)
    name, rate = default[0], default[1] * LIMITS.above_default
    if name.lower() not in ("sgd", "asgd"):
        return Tolerance(name, rate, far * rate)
    far_too_high, momentum = far * max(rate, LIMITS.high_for_any), settings_of(context.history).momentum
    if momentum is None or momentum <= LIMITS.usual_momentum:
        return Tolerance(name, rate, far_too_high)
    share = (1 - momentum) / (1 - LIMITS.usual_momentum)
    return Tolerance(f"{name} with momentum {momentum:g}", share * rate, share * far_too_high, 1 / (1 - momentum), rate)


def learning_rate_check(context: EpisodeContext) -> CheckResult:
    resumed = _changed_at_resume(context)
    if resumed is not None:
        return resumed
    if context.by_lbfgs:
        return without_line_search_check(context)
    if context.before_any_update:
        return ruled_out(f"learning rate: no optimizer step was taken before {context.unit} {context.episode.start}")
    result = _jumped(context) or step_size_check(context)
    if result is not None:
        return result
    highest = _highest(context, context.episode.start)
    if highest is None:
        return not_checked("learning rate: not logged")
    return _had_risen(context, *highest) or _too_high(context, *highest) or _was_tolerated(context, *highest)


def rate_too_low_check(context: EpisodeContext) -> CheckResult:
    """Check whether the learning rate was too low to change any weight."""
    rates = [rate for rate in context.rates if rate.finite.any()]
    if not rates:
        return not_checked("learning rate: not logged")
    top = max(float(rate.values[rate.finite].max()) for rate in rates)
    if top > LIMITS.too_low:
        return _fell_early(context, rates) or ruled_out(f"learning rate too low: it reached {top:.3g}")
    statement = f"The learning rate never exceeded {top:.3g}, too low to change the weights."
    return cause_found("learning_rate_too_low", statement, since=min(int(rate.steps[0]) for rate in rates))


def _fell_early(context: EpisodeContext, rates: list[Curve]) -> CheckResult | None:
    """Check whether all learning rates fell to almost nothing long before the end, and not from a jump of one step."""
    falls = []
    for rate in rates:
        values, steps = rate.values[rate.finite], rate.steps[rate.finite]
        high = np.flatnonzero(values > LIMITS.almost_nothing * values.max())
        after, least = int(high[-1]) + 1 if len(high) else 0, max(1.0, LIMITS.low_share * (steps[-1] - steps[0]))
        if after == len(steps) or 2 * len(high) <= after or steps[-1] - steps[after] < least:
            return None
        falls.append((int(steps[after]), float(values.max())))
    step, top = max(falls)
    statement = (
        f"The learning rate had fallen from {top:.3g} to less than {LIMITS.almost_nothing * top:.2g} by {context.unit} "
        f"{step}, long before the end: the schedule may be stepped too often."
    )
    remedies = Remedy(Action.STEP_SCHEDULE_PER_EPOCH), Remedy(Action.CHECK_SCHEDULE)
    return cause_found("learning_rate_too_low", statement, since=step, remedies=remedies)


def rate_too_high_check(context: EpisodeContext) -> CheckResult:
    """Check whether a loss that never fell has a learning rate that is too high."""
    highest = _highest(context, context.latest)
    if highest is None or context.loss is None:
        return not_checked("learning rate: not logged")
    (rate, values), name = highest, "learning rate too high"
    top = float(values.max())
    losses = context.loss.values[context.loss.finite & (context.loss.steps <= context.episode.end)]
    if len(losses) >= LIMITS.min_losses and _fell(losses):
        return ruled_out(f"{name}: the loss fell from {losses[0]:.3g} at rates up to {top:.3g}")
    if unmoved := hardly_moved(context):
        return ruled_out(f"{name}: {unmoved}")
    tolerance = tolerance_of_optimizer(context)
    if top <= tolerance.rate or not context.span.begins_training:
        return not_checked(f"{name}: a rate below {top:.3g} was not tried")
    return cause_found(
        "learning_rate_too_high",
        f"The learning rate was {top:.3g}, and the loss did not fall: {tolerance.optimizer} rarely tolerates learning "
        f"rates above {tolerance.rate:g}.",
        f"learning rate {_course(values)}",
        since=int(rate.steps[0]),
        remedies=tolerance.remedies(top, max(10.0, top / tolerance.rate)),
    )


def _highest(context: EpisodeContext, step: int) -> tuple[Curve, Values] | None:
    """Return the learning rate that was the highest up to a step, and its values until then."""
    rates = [(rate, values) for rate in context.rates if len(values := rate.values[rate.finite & (rate.steps <= step)])]
    return max(rates, key=lambda pair: float(pair[1].max()), default=None)


def _changed_at_resume(context: EpisodeContext) -> CheckResult | None:
    """Check whether the episode began after a resume that changed the learning rate, which it should have kept."""
    if context.episode.facts_as(ResumeFacts) is None:
        return None
    curves = curves_of(context.history, "learning_rate")
    earlier = [curve for curve in curves if curve.attempt < context.episode.attempt]
    for rate in context.rates:
        same_name = [curve for curve in earlier if curve.name == rate.name]
        old = max(same_name, key=lambda curve: curve.attempt, default=None)
        if old is None or not old.finite.any() or not rate.finite.any():
            continue
        same = old.values[old.finite & (old.steps <= rate.steps[0])]
        before = float(same[-1] if len(same) else old.values[old.finite][-1])
        after = float(rate.values[rate.finite][0])
        if before > 0 and after >= LIMITS.across_resume * before:
            step = int(rate.steps[0])
            return cause_found(
                "learning_rate_jump",
                f"The learning rate changed at the resume at {context.unit} {step}: {before:.3g} before, {after:.3g} "
                "after.",
                f"learning rate x {after / before:.3g} across the resume",
                since=step,
            )
    return None


def _jumped(context: EpisodeContext) -> CheckResult | None:
    for rate in context.rates:
        near = [jump for jump in jumps_in(rate) if context.first_before(rate) <= jump.step <= context.latest]
        if not near:
            continue
        jump = near[-1]
        earlier = context.episode.start - jump.step
        lead = f", {counted(earlier, context.unit)} before the first sign" if earlier > 0 else ""
        owner = ""
        if len(context.rates) > 1:
            several = any(curve.place.startswith("optimizer_") for curve in context.rates)
            owner = f" of {rate.place or ('optimizer_0' if several else 'group_0')}"
        return cause_found(
            "learning_rate_jump",
            f"The learning rate{owner} jumped from {jump.before:.3g} to {jump.after:.3g} at {context.unit} "
            f"{jump.step}{lead}.",
            f"learning rate x {jump.after / jump.before:.3g} in one step",
            since=jump.step,
        )
    return None


def _had_risen(context: EpisodeContext, rate: Curve, values: Values) -> CheckResult | None:
    now, steps = float(values[-1]), rate.steps[rate.finite]
    later = _tolerated_later(context, rate, LIMITS.tolerated_later * now)
    if later is not None:
        return ruled_out(f"learning rate: {now:.3g}, and {later:.3g} later without trouble")
    highest = float(values[: -LIMITS.recent_points].max(initial=0.0))
    if highest > 0 and now >= LIMITS.raised * highest:
        return cause_found(
            "learning_rate_too_high",
            f"The learning rate had risen to {now:.3g} when it began; before, it was at most {highest:.3g}.",
            f"learning rate x {now / highest:.3g} within {LIMITS.recent_points} points",
            since=int(steps[len(values) - LIMITS.recent_points]),
            remedies=(Remedy(Action.LOWER_LEARNING_RATE, baseline=now, target=highest),),
        )
    begin = after_last(np.diff(values) < 0)  # of the rise that was going on
    is_rising = len(values) > LIMITS.ends and now > (1 + LIMITS.constant) * float(values[-LOOKBACK.just_before :][0])
    if not is_rising or now < LIMITS.risen * float(values[begin]) or now <= float(values[:begin].max(initial=0.0)):
        return None
    return cause_found(
        "learning_rate_too_high",
        f"The learning rate was rising and had reached {now:.3g}, its highest so far, when it began.",
        f"learning rate rose from {values[begin]:.3g} at {context.unit} {int(steps[begin])} to {now:.3g}",
        since=int(steps[begin]),
    )


def _tolerated_later(context: EpisodeContext, rate: Curve, minimum: float) -> float | None:
    """Return the highest of the later rates above `minimum` if the training went well from the first of them on."""
    if context.loss is None:
        return None
    start, losses = context.episode.start, context.loss
    high = np.flatnonzero((rate.steps > start) & (rate.values >= minimum))
    since = losses.values[losses.steps >= rate.steps[high[0]]] if len(high) else np.zeros(0)
    before = losses.values[(losses.steps < start) & losses.finite]
    if not len(since) or not len(before) or not np.isfinite(since).all():
        return None
    usual = float(np.median(before[-LOOKBACK.just_before :]))
    went_well = max(np.median(since[: LOOKBACK.just_before]), np.median(since[-LIMITS.ends :])) <= usual
    return float(rate.values[high].max()) if went_well else None


def _too_high(context: EpisodeContext, rate: Curve, values: Values) -> CheckResult | None:
    """Check whether the learning rate was too high from the start, or for the optimizer."""
    episode, now, tolerance = context.episode, float(values[-1]), tolerance_of_optimizer(context)
    top, first = float(rate.values[rate.finite].max()), int(rate.steps[0])
    too_high = partial(cause_found, "learning_rate_too_high", since=first)
    at_start = f"learning rate {now:.3g} at {context.unit} {episode.start}"
    earlier = _earlier_rate(context, episode.start)
    is_just_after = episode.start - first <= LOOKBACK.between_looks
    if earlier is not None and now > LIMITS.raised * earlier and (is_just_after or now > tolerance.rate):
        return too_high(
            f"The learning rate was {now:.3g} with the optimizer that took over at {context.unit} {first}; with the "
            f"one before, it was at most {earlier:.3g}.",
            at_start,
            remedies=(lower_by(now, max(10.0, now / tolerance.rate)),),
        )
    rarely = f"{tolerance.optimizer} rarely tolerates learning rates above {tolerance.rate:g}."
    if context.is_early and now > tolerance.far_too_high:
        return too_high(
            f"The learning rate was {now:.3g} from the start, far too high: {rarely}",
            at_start,
            remedies=tolerance.remedies(now, now / tolerance.rate),
        )
    if context.is_early and episode.kind != "loss_spike" and float(values[0]) >= STEP_LIMITS.no_warm_up * top > 0:
        if (loss := context.loss) is not None:  # a rate that a rollback lowered is another one
            same = rate.steps[(rate.steps > episode.start) & (rate.values >= LIMITS.tolerated * now)]
            early, later = loss.values[loss.finite][: LIMITS.ends], loss.values[loss.finite & np.isin(loss.steps, same)]
            if len(later) >= LIMITS.min_losses and _fell(np.concatenate((early, later))):
                fall = f"from {np.median(early):.3g} to {np.median(later[-LIMITS.ends :]):.3g}"
                return ruled_out(f"missing warm-up: at {now:.3g} the loss fell {fall} afterwards")
        stable = stable_rate(context, now)
        if stable is not None:
            return too_high(
                f"The learning rate was {now:.3g} from the start. After the rollback the training went on well at "
                f"{stable.target:.3g}.",
                at_start,
                remedies=(stable,),
            )
        return cause_found(
            "no_warm_up",
            f"No warm-up: the learning rate was {now:.3g}, its highest, from the first step on.",
            f"learning rate {values[0]:.3g} at the first step; the finding starts at {context.unit} {episode.start}",
            since=first,
            certainty="likely" if first_updates_large(context) else "possible",
        )
    if now > tolerance.rate == LIMITS.high_for_adam:
        return too_high(
            f"The learning rate was {now:.3g}; {rarely}",
            at_start,
            certainty="possible",
            remedies=(lower_by(now, now / tolerance.rate),) if now >= 2 * tolerance.rate else (),
        )
    before = np.empty(0) if context.loss is None else context.before(context.loss, len(context.loss.values))
    learned = _fell(before)
    named = learned or now <= tolerance.usual_rate
    if now > tolerance.rate and context.span.begins_training and (not learned or len(before) < tolerance.memory):
        return too_high(
            f"The learning rate was {now:.3g}" + (f"; {rarely}" if named else ", and the loss had not fallen at it."),
            f"learning rate {_course(values)}",
            certainty="possible",
            remedies=tolerance.remedies(now, now / tolerance.rate if named else 10.0),
        )
    return None


def _earlier_rate(context: EpisodeContext, step: int) -> float | None:
    """Return the highest rate of the optimizers before the one in use, as a run names only its first; None without."""
    highest = _highest(context, step)
    if highest is None or not highest[0].place.startswith("optimizer_"):
        return None
    return context.highest_rate_before(highest[0])


def _was_tolerated(context: EpisodeContext, rate: Curve, values: Values) -> CheckResult:
    """Rule the learning rate out if the training had learned at it."""
    course, loss = f"learning rate: {_course(values)}", context.loss
    restart = restart_before(rate, context.episode.start)
    if restart is not None:
        return not_checked(
            f"learning rate: restarted from {restart.before:.3g} to {restart.after:.3g} at {context.unit} "
            f"{restart.step}, a rate it had before; the effect of the restart is unknown"
        )
    if loss is None:
        return not_checked(f"{course}; too few losses at this rate")
    reached = int(rate.steps[rate.finite][int(np.argmax(values >= LIMITS.tolerated * float(values[-1])))])
    at_rate = (loss.steps >= reached) & (loss.steps < context.episode.start) & loss.finite
    losses, facts = loss.values[at_rate], context.episode.facts_as(LossRiseFacts)
    if facts is not None:  # without the rise itself: a divergence is found some steps after it began
        recent = losses[-LOOKBACK.just_before :]
        high = np.flatnonzero(recent - facts.baseline > LIMITS.in_rise * (facts.value - facts.baseline))
        losses = losses[: len(losses) - len(recent) + int(high[0])] if len(high) else losses
    if len(losses) >= LIMITS.min_losses and _fell(losses):
        first, last = np.median(losses[: LIMITS.ends]), np.median(losses[-LIMITS.ends :])
        return ruled_out(f"{course}; at this rate the loss fell from {first:.3g} to {last:.3g}")
    return not_checked(f"{course}; the loss had not fallen at this rate, so a lower one may help")


def _fell(losses: Values) -> bool:
    if len(losses) < 2 * LIMITS.ends:
        return False
    began, last = losses[: LIMITS.ends], float(np.median(losses[-LIMITS.ends :]))
    first = float(np.median(began))
    return last < float(began.min()) and last < (LIMITS.learned * first if first > 0 else first)


def _course(values: Values) -> str:
    recent = values[-LOOKBACK.just_before :]
    high = float(recent.max())
    if high - float(recent.min()) <= LIMITS.constant * high:
        return f"constant at {high:.3g}"
    direction = "falling" if recent[-1] < recent[0] else "rising"
    return f"{direction} from {recent[0]:.3g} to {recent[-1]:.3g}"


CAUSES = (
    CauseType(
        "learning_rate_jump",
        "The learning rate jumped shortly before.",
        "A finding of `learning_rate_jump` within the {LOOKBACK.just_before} points before: the rate rose in one step "
        "beyond its highest so far. Warm-ups and warm restarts do not count. After a resume: the rate was "
        "{LIMITS.across_resume} times the rate before.",
        "The training tolerated the jump, and the finding has another cause.",
        LearningRateJump.remedies,
    ),
    CauseType(
        "learning_rate_too_high",
        "The learning rate was too high for the model.",
        "One of: the first updates changed the weights by 10 % of their norm or more; the rate was rising and at its "
        "highest so far; it was above ten times the default of its optimizer ({LIMITS.high_for_adam} with Adam, 10 "
        "with Adadelta) and the loss did not fall; updates stayed large and it hardly fell. Never named before the "
        "first optimizer step, nor for first updates at the default.",
        "A rise that coincides with a bad batch; an architecture that is made for large rates.",
        (LOWER_RATE_2_TO_5,),
    ),
    CauseType(
        "learning_rate_too_low",
        "The learning rate was too low to change the weights.",
        "It never exceeded {LIMITS.too_low}, or all steps together hardly moved the weights. Or it fell below "
        "{LIMITS.almost_nothing} of its highest value and stayed there for {LIMITS.low_share:percent} of the run.",
        "An optimizer that does not scale its steps by the logged rate.",
        (Remedy(Action.RAISE_LEARNING_RATE),),
    ),
    CauseType(
        "no_warm_up",
        "The learning rate was at its highest from the first step on.",
        "The finding started in the first {LOOKBACK.early:percent} of the run, at the highest rate. Or the first "
        "updates changed the weights by more than 2 % of their norm and the loss rose.",
        "Bad initial weights, or a rate that is too high after a warm-up as well.",
        (WARM_UP_LEARNING_RATE,),
        phrase="missing warm-up",
    ),
)
CHECKS = (
    Check(
        learning_rate_check,
        {
            Symptom.NON_FINITE: 20,
            Symptom.RISING: 10,
            Symptom.LARGE_UPDATES: 10,
            Symptom.LEARNING_RATE: 10,
            Symptom.INSIDE: 10,
        },
        frozenset({"learning_rate_jump", "learning_rate_too_high", "no_warm_up"}),
    ),
    Check(rate_too_low_check, {Symptom.STUCK: 30, Symptom.VANISHING: 30}, frozenset({"learning_rate_too_low"})),
    Check(rate_too_high_check, {Symptom.STUCK: 40}, frozenset({"learning_rate_too_high", "no_warm_up"})),
)

RATE_CAUSES = frozenset(cause.name for cause in CAUSES)  # causes that a lower, or longer warmed up, rate helps against
