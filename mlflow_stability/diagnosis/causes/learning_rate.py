"""Looks for the cause in the learning rate: a jump, a missing warm-up, a rate that is too high or too low.

A rate at which the loss had fallen for a while did not break the training; a rate that is higher than all before may
have, and one at which nothing was ever learned cannot be ruled out. Jumps are those of the detector, which excuses warm
restarts and warm-ups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, curves_of
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.learning_rate_restart import MIN_RISE, RateRestart
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext, shown
from mlflow_stability.diagnosis.causes.step_size import first_updates_large, lower_by, step_size_check
from mlflow_stability.diagnosis.parameters.recorded_settings import default_rate, is_adam
from mlflow_stability.kinds.loss.resume import ResumeFacts
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJump, LearningRateJumpFacts
from mlflow_stability.vocabulary.facts import LossRiseFacts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, WARM_UP_LEARNING_RATE, Action, Remedy
from mlflow_stability.vocabulary.text import counted


@dataclass(frozen=True, slots=True)
class RateRise:
    """One rise in one step."""

    step: int
    before: float
    after: float


def jumps_in(rate: Curve) -> list[RateRise]:
    """The jumps, in order of time."""
    if not _rises_at_once(rate):
        return []
    detector = LearningRateJump()
    state, found = detector.begin(), []
    for step, value in _points(rate):
        state, event = detector.step(state, Point("learning_rate", rate.place, step, value))
        if event is not None and isinstance(event.facts, LearningRateJumpFacts):
            found.append(RateRise(event.step, event.facts.before, event.facts.learning_rate))
    return found


def restart_before(rate: Curve, step: int) -> RateRise | None:
    """The restart to which a rise of the loss at this step belongs; None: there is none."""
    if not _rises_at_once(rate):
        return None
    watch, last, found = RateRestart(), 0.0, None
    for at, value in _points(rate):
        if at > step:
            break
        watch.see(value, at)
        if watch.at == at:
            found = RateRise(at, last, value)
        last = value
    return found if watch.excuses(step) else None


def _points(rate: Curve) -> list[tuple[int, float]]:
    return list(zip(rate.steps[rate.finite].tolist(), rate.values[rate.finite].tolist(), strict=True))


def _rises_at_once(rate: Curve) -> bool:
    """Whether it is worth while to look at each point."""
    values = rate.values[rate.finite]
    return bool((values[1:] >= MIN_RISE * values[:-1]).any())


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Thresholds of the causes in the learning rate."""

    across_resume: float = 1.5
    """Minimum ratio of a learning rate to that before a resume for it to be another one."""
    high_for_adam: float = 0.01
    """Optimizers of the Adam family rarely tolerate a higher learning rate."""
    high: float = 0.1
    """Optimizers that are not known rarely tolerate a higher learning rate."""
    far_too_high: float = 10.0
    """Factor on what an optimizer tolerates from which on a learning rate is too high whatever the schedule."""
    above_default: float = 10.0
    """Factor on its default learning rate up to which a known optimizer tolerates more, ..."""
    high_for_any: float = 1.0
    """... and for any other one, or SGD, the rate from ten times which on first steps are far too large."""
    too_low: float = 1e-08
    """Learning rate up to which no weight moves."""
    constant: float = 0.001
    """Share of its change just before up to which a learning rate is constant."""
    risen: float = 1.05
    """Minimum factor by which a learning rate must have risen in all for its rise to be a reason."""
    tolerated_later: float = 1.4
    """A learning rate that later rose by this factor while the training went well was not too high."""
    new_ground: int = 100
    """Number of points before an episode whose learning rate is compared with all before them."""
    raised: float = 2.0
    """Minimum factor on the highest learning rate before them."""
    tolerated: float = 0.95
    """Minimum share of the present learning rate at which an earlier one was as high."""
    learned: float = 0.9
    """Share of its first value to which a loss must fall to have learned."""
    min_losses: int = 16
    """Minimum number of losses at a learning rate that show whether it was tolerated."""
    ends: int = 5
    """Number of points whose median is where a loss was."""
    on_the_way: float = 0.25
    """Share of the way from its baseline to where it was found from which on a loss belongs to a rise."""


LIMITS = RateLimits()
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tolerated:
    """How high a learning rate an optimizer tolerates."""

    who: str
    """As sentences name it."""
    rate: float
    far: float
    """From here on it is far too high, whatever the schedule."""


def tolerated_by(around: EpisodeContext) -> Tolerated:
    """Of the optimizer in use; of an unknown one what most tolerate."""
    known = default_rate(around.history)
    adam = is_adam(around.history)
    if adam and (known is None or known[1] * LIMITS.above_default <= LIMITS.high_for_adam):
        return Tolerated("Adam", LIMITS.high_for_adam, LIMITS.far_too_high * LIMITS.high_for_adam)
    if known is None:
        return Tolerated("an optimizer", LIMITS.high, LIMITS.far_too_high * LIMITS.high_for_any)
    name, rate = known
    least = LIMITS.far_too_high * LIMITS.high_for_any if name.lower() in ("sgd", "asgd") else 0.0
    return Tolerated(name, rate * LIMITS.above_default, max(least, rate * LIMITS.above_default * LIMITS.far_too_high))


def learning_rate_check(around: EpisodeContext) -> CheckResult:
    """What the learning rate did before something broke."""
    resumed = _since_the_resume(around)
    if resumed is not None:
        return resumed
    if around.before_any_update:
        return is_not(f"learning rate: no optimizer step was taken before {around.unit} {around.episode.start}")
    jumped = _jumped(around)
    if jumped is not None:
        return jumped
    too_large = step_size_check(around)
    if too_large is not None:
        return too_large
    highest = _highest(around, around.episode.start)
    if highest is None:
        return not_seen("learning rate: not logged")
    rate, values = highest
    return _risen(around, rate, values) or _too_high(around, rate, values) or _tolerated(around, rate, values)


def rate_too_low_check(around: EpisodeContext) -> CheckResult:
    """Whether nothing could move for want of a learning rate."""
    every = [rate for rate in around.rates if rate.finite.any()]
    if not every:
        return not_seen("learning rate: not logged")
    top = max(float(rate.values[rate.finite].max()) for rate in every)
    if top <= LIMITS.too_low:
        said = f"The learning rate never exceeded {shown(top)}, too low to change the weights."
        return is_it("learning_rate_too_low", said, since=min(int(rate.steps[0]) for rate in every))
    return is_not(f"learning rate too low: it reached {shown(top)}")


def rate_too_high_check(around: EpisodeContext) -> CheckResult:
    """Whether nothing is learned because steps are too large, where the loss stands still from the beginning."""
    highest = _highest(around, around.latest)
    if highest is None or around.loss is None:
        return not_seen("learning rate: not logged")
    rate, values = highest
    top, name = float(values.max()), "learning rate too high"
    losses = around.loss.values[around.loss.finite & (around.loss.steps <= around.episode.end)]
    if len(losses) >= LIMITS.min_losses and _fell(losses):
        return is_not(f"{name}: the loss fell from {shown(losses[0])} at rates up to {shown(top)}")
    limit = tolerated_by(around)
    if top > limit.rate and around.span.begins_training:
        return is_it(
            "learning_rate_too_high",
            f"The learning rate was {shown(top)}, and the loss did not fall: {limit.who} rarely tolerates learning "
            f"rates above {limit.rate:g}.",
            f"learning rate {_course(values)}",
            since=int(rate.steps[0]),
            remedies=(lower_by(top, max(10.0, top / limit.rate)),),
        )
    return not_seen(f"{name}: a rate below {shown(top)} was not tried")


def _highest(around: EpisodeContext, step: int) -> tuple[Curve, Values] | None:
    """The learning rate that was the highest up to a step, with its values until then; None where none is known."""
    rates = [(rate, values) for rate in around.rates if len(values := _until(rate, step))]
    return max(rates, key=lambda each: float(each[1].max()), default=None)


def _since_the_resume(around: EpisodeContext) -> CheckResult | None:
    """Whether the learning rate was another one before the resume after which it began.

    A setting, which the resume should have kept, and no measurement: so it is compared across the resume.
    """
    if around.episode.known(ResumeFacts) is None:
        return None
    earlier = [each for each in curves_of(around.history, "learning_rate") if each.attempt < around.episode.attempt]
    for rate in around.rates:
        old = max((each for each in earlier if each.name == rate.name), key=lambda each: each.attempt, default=None)
        if old is None or not old.finite.any() or not rate.finite.any():
            continue
        same = old.values[old.finite & (old.steps <= rate.steps[0])]
        before = float(same[-1] if len(same) else old.values[old.finite][-1])
        after = float(rate.values[rate.finite][0])
        if before > 0 and after >= LIMITS.across_resume * before:
            return is_it(
                "learning_rate_jump",
                f"The learning rate changed at the resume at {around.unit} {int(rate.steps[0])}: {shown(before)} "
                f"before, {shown(after)} after.",
                f"learning rate x {after / before:.3g} across the resume",
                since=int(rate.steps[0]),
            )
    return None


def _jumped(around: EpisodeContext) -> CheckResult | None:
    start = around.episode.start
    for rate in around.rates:
        near = [each for each in jumps_in(rate) if around.first_before(rate) <= each.step <= around.latest]
        if near:
            jump = near[-1]
            earlier, factor = start - jump.step, jump.after / jump.before
            since = f", {counted(earlier, around.unit)} before the first sign" if earlier > 0 else ""
            what = f"from {shown(jump.before)} to {shown(jump.after)}"
            whose = _name_of(rate, around.rates)
            return is_it(
                "learning_rate_jump",
                f"The learning rate{whose} jumped {what} at {around.unit} {jump.step}{since}.",
                f"learning rate x {factor:.3g} in one step",
                since=jump.step,
            )
    return None


def _name_of(rate: Curve, rates: Sequence[Curve]) -> str:
    """Whose learning rate it is where there are several: `` of optimizer_1``, `` of group_0``."""
    if len(rates) == 1:
        return ""
    several = any(each.place.startswith("optimizer_") for each in rates)
    return f" of {rate.place}" if rate.place else " of optimizer_0" if several else " of group_0"


def _risen(around: EpisodeContext, rate: Curve, values: Values) -> CheckResult | None:
    now, finite = float(values[-1]), rate.steps[rate.finite]
    higher = _tolerated_later(around, rate, LIMITS.tolerated_later * now)
    if higher is not None:
        return is_not(f"learning rate: {shown(now)}, and {shown(higher)} later without trouble")
    ground = float(values[: -LIMITS.new_ground].max()) if len(values) > LIMITS.new_ground else 0.0
    if ground > 0 and now >= LIMITS.raised * ground:
        return is_it(
            "learning_rate_too_high",
            f"The learning rate had risen to {shown(now)} when it began; before, it was at most {shown(ground)}.",
            f"learning rate x {now / ground:.3g} within {LIMITS.new_ground} points",
            since=int(finite[len(values) - LIMITS.new_ground]),
            remedies=(Remedy(Action.LOWER_LEARNING_RATE, baseline=now, target=ground),),
        )
    begun = _climb(values)
    recent = values[-LOOKBACK.just_before :]
    rising = len(values) > LIMITS.ends and now > (1 + LIMITS.constant) * float(recent[0])
    highest_before = float(values[:begun].max(initial=0.0))
    if not rising or now < LIMITS.risen * float(values[begun]) or now <= highest_before:
        return None
    return is_it(
        "learning_rate_too_high",
        f"The learning rate was rising and had reached {shown(now)}, its highest so far, when it began.",
        f"learning rate rose from {shown(float(values[begun]))} at {around.unit} {int(finite[begun])} to {shown(now)}",
        since=int(finite[begun]),
    )


def _tolerated_later(around: EpisodeContext, rate: Curve, least: float) -> float | None:
    """A rate of at least so much at which the training went on well afterwards; None: there was none."""
    if around.loss is None:
        return None
    start = around.episode.start
    high = np.flatnonzero((rate.steps > start) & (rate.values >= least))
    since = around.loss.values[around.loss.steps >= rate.steps[high[0]]] if len(high) else np.zeros(0)
    before = around.loss.values[(around.loss.steps < start) & around.loss.finite]
    if not len(since) or not len(before) or not np.isfinite(since).all():
        return None
    usual = float(np.median(before[-LOOKBACK.just_before :]))
    well = float(np.median(since[: LOOKBACK.just_before])) <= usual and float(np.median(since[-LIMITS.ends :])) <= usual
    return float(rate.values[high].max()) if well else None


def _climb(values: Values) -> int:
    """Where the rise that was still going on at the end began: after the last point that was higher than the next."""
    fell = np.flatnonzero(np.diff(values) < 0)
    return int(fell[-1]) + 1 if len(fell) else 0


def _too_high(around: EpisodeContext, rate: Curve, values: Values) -> CheckResult | None:
    """Whether it was too high from the start, or for the optimizer."""
    episode, now, limit = around.episode, float(values[-1]), tolerated_by(around)
    of_adam = limit.rate == LIMITS.high_for_adam
    top = float(rate.values[rate.finite].max())
    first = int(rate.steps[0])
    if around.is_early and now > limit.far:
        return is_it(
            "learning_rate_too_high",
            f"The learning rate was {shown(now)} from the start, far too high: {limit.who} rarely tolerates learning "
            f"rates above {limit.rate:g}.",
            f"learning rate {shown(now)} at {around.unit} {episode.start}",
            since=first,
            remedies=(lower_by(now, now / limit.rate),),
        )
    if around.is_early and episode.kind != "loss_spike" and float(values[0]) >= 0.9 * top > 0:
        return is_it(
            "no_warm_up",
            f"No warm-up: the learning rate was {shown(now)}, its highest, from the first step on.",
            f"learning rate {shown(float(values[0]))} at the first step; the finding starts at "
            f"{around.unit} {episode.start}",
            since=first,
            certainty="likely" if first_updates_large(around) else "possible",
        )
    if now > limit.rate and of_adam:
        return is_it(
            "learning_rate_too_high",
            f"The learning rate was {shown(now)}; {limit.who} rarely tolerates learning rates above {limit.rate:g}.",
            f"learning rate {shown(now)} at {around.unit} {episode.start}",
            since=first,
            certainty="possible",
            remedies=(lower_by(now, now / limit.rate),) if now >= 2 * limit.rate else (),
        )
    if now > limit.rate and around.span.begins_training and not _learned_before(around):
        return is_it(
            "learning_rate_too_high",
            f"The learning rate was {shown(now)}, and the loss had not fallen at it.",
            f"learning rate {_course(values)}",
            since=first,
            certainty="possible",
            remedies=(lower_by(now, 10.0),),
        )
    return None


def _tolerated(around: EpisodeContext, rate: Curve, values: Values) -> CheckResult:
    """Whether the training had learned at such a rate: then it is not that; otherwise nobody knows."""
    said = f"learning rate: {_course(values)}"
    restart = restart_before(rate, around.episode.start)
    if restart is not None:
        return not_seen(
            f"learning rate: restarted from {shown(restart.before)} to {shown(restart.after)} at {around.unit} "
            f"{restart.step}, a rate it had before; the effect of the restart is unknown"
        )
    if around.loss is None:
        return not_seen(f"{said}; too few losses at this rate")
    reached = int(rate.steps[rate.finite][int(np.argmax(values >= LIMITS.tolerated * float(values[-1])))])
    at_it = (around.loss.steps >= reached) & (around.loss.steps < around.episode.start) & around.loss.finite
    losses = _until_the_rise(around, around.loss.values[at_it])
    if len(losses) >= LIMITS.min_losses and _fell(losses):
        first, last = float(np.median(losses[: LIMITS.ends])), float(np.median(losses[-LIMITS.ends :]))
        return is_not(f"{said}; at this rate the loss fell from {shown(first)} to {shown(last)}")
    return not_seen(f"{said}; the loss had not fallen at this rate, so a lower one may help")


def _until_the_rise(around: EpisodeContext, losses: Values) -> Values:
    """The losses before an episode without its own rise: a divergence is found some steps after it began."""
    rise = around.episode.known(LossRiseFacts)
    if rise is None:
        return losses
    rises = losses[-LOOKBACK.just_before :] - rise.baseline
    high = np.flatnonzero(rises > LIMITS.on_the_way * (rise.value - rise.baseline))
    return losses[: max(0, len(losses) - LOOKBACK.just_before) + int(high[0])] if len(high) else losses


def _learned_before(around: EpisodeContext) -> bool:
    return around.loss is not None and _fell(around.before(around.loss, len(around.loss.values)))


def _fell(losses: Values) -> bool:
    if len(losses) < 2 * LIMITS.ends:
        return False
    first, last = float(np.median(losses[: LIMITS.ends])), float(np.median(losses[-LIMITS.ends :]))
    return last < (LIMITS.learned * first if first > 0 else first)


def _until(curve: Curve, step: int) -> Values:
    finite = curve.finite
    return curve.values[finite][: int(np.searchsorted(curve.steps[finite], step, side="right"))]


def _course(values: Values) -> str:
    recent = values[-LOOKBACK.just_before :]
    low, high = float(recent.min()), float(recent.max())
    if high - low <= LIMITS.constant * high:
        return f"constant at {shown(high)}"
    way = "falling" if recent[-1] < recent[0] else "rising"
    return f"{way} from {shown(float(recent[0]))} to {shown(float(recent[-1]))}"


CAUSES = (
    CauseDocumentation(
        "learning_rate_jump",
        "The learning rate jumped shortly before.",
        "A finding of `learning_rate_jump` within the {LOOKBACK.just_before} points before: the rate rose in one step "
        "beyond its highest so far. Warm-ups and warm restarts do not count. After a resume: the rate was "
        "{LIMITS.across_resume} times the rate before.",
        "The training tolerated the jump, and the finding has another cause.",
        LearningRateJump.remedies,
    ),
    CauseDocumentation(
        "learning_rate_too_high",
        "The learning rate was too high for the model.",
        "One of: the first updates changed the weights by 10 % of their norm or more; the rate was rising and at its "
        "highest so far; it was above ten times the default of its optimizer ({LIMITS.high_for_adam} with Adam, 10 "
        "with Adadelta) and the loss did not fall; updates stayed large and it hardly fell. Never named before the "
        "first optimizer step, nor for first updates at the default.",
        "A rise that coincides with a bad batch; an architecture that is made for large rates.",
        (LOWER_RATE_2_TO_5,),
    ),
    CauseDocumentation(
        "learning_rate_too_low",
        "The learning rate was too low to change the weights.",
        "It never exceeded {LIMITS.too_low}, or all steps together hardly moved the weights.",
        "An optimizer that does not scale its steps by the logged rate.",
        (Remedy(Action.RAISE_LEARNING_RATE),),
    ),
    CauseDocumentation(
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


OF_THE_RATE = frozenset(each.name for each in CAUSES)
"""The causes that a lower or a longer warmed-up learning rate helps against."""


def rate_is_innocent(ruled_out: Iterable[str]) -> bool:
    """Whether the causes that were ruled out, by name, include a learning rate that is too high."""
    return "learning_rate_too_high" in ruled_out
