"""Looks for the cause in one batch, or in all batches from a step on: a spike that recovered by itself, a sudden jump.

The argument: the loss of a batch is computed before the optimizer step on it. Where gradient norm, learning rate and
weights of the step before were normal, the batch is what made the loss jump. Where the step was skipped and the next
batches are normal with the same weights, that is sure. Where the losses after the jump are as high as its own, the
data or the loss function changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, Curve, median_deviation
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import (
    LOOKBACK,
    EpisodeContext,
    listed_steps,
    norms_before,
    shown,
    usual_norm,
)
from mlflow_stability.diagnosis.causes.learning_rate import jumps_in
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Thresholds of the causes in one batch, or in all batches from a step on."""

    with_it: float = 3.0
    """Minimum ratio of a gradient norm that jumps with the loss to its baseline."""
    short: int = 3
    """Maximum number of logged points of a spike of one batch."""
    min_points: int = 50
    """Minimum number of points of a curve; one with fewer may log an epoch in each."""
    min_values: int = 16
    """Minimum number of values before an episode for a baseline."""
    leap: float = 10.0
    """Factor on the range of the last points from which on no usual update explains a rise above them."""
    in_a_row: int = 8
    """Maximum number of bad batches in a row that are counted."""
    afterwards: int = 3
    """Number of steps after a skipped one that must be normal to clear the weights."""
    normal_range: float = 2.0
    """Factor on the range of the last points within which their losses are normal."""
    same_number: float = 1e-06
    """Share by which losses differ that are one number but for rounding."""
    returns: int = 3
    """Minimum number of times that a batch returns, ..."""
    as_high: float = 0.5
    """... each rising by this share of the highest loss near, ..."""
    between: float = 0.1
    """... with nearly no other loss that rises by this share of it, ..."""
    rare: float = 0.1
    """... and at most this share of all losses."""
    no_exception: float = 0.25
    """Share of its rise that values before must reach, `returns` times, for a value to be no exception."""
    searched: int = 48
    """Maximum number of points between a jump and the divergence that is found."""
    jump_min_losses: int = 16
    """Minimum number of losses before a jump that tell their range."""
    deviations: float = 6.0
    """Minimum rise of a jump in σ of the losses before."""
    stay_above: int = 4
    """Number of losses from the jump on whose median must stay above the range before."""
    after: int = 8
    """Number of losses after the jump that are looked at, ..."""
    built_up: float = 3.0
    """... none of which rises above so many times the jump: a training that diverges by its own steps multiplies its
    loss."""
    shrunk: float = 0.7
    """Share of the weight norm of the measurement before below which the weights were decayed away."""
    faded: float = 0.35
    """Minimum share of the jump of the median of the next `stay_above` losses: the step on a bad batch leaves less."""
    back: float = 0.05
    """Share of the jump up to which a loss is normal again: then it was some batches."""
    rate_before: int = 8
    """Number of steps before a jump in which a jump of the learning rate explains it."""


LIMITS = BatchLimits()


def bad_batch_check(around: EpisodeContext) -> CheckResult:
    """Whether it was one batch: a spike of a step or a few that came back by itself, or a leap within one step."""
    episode, loss = around.episode, around.loss
    if loss is None:
        return not_seen("bad batch: no loss was logged")
    regular = _regular(around)
    if regular:
        return is_not(f"bad batch: {regular}")
    sudden = sudden_check(around)
    if sudden.cause is not None:
        return sudden
    if any(
        episode.start <= each.step <= episode.end + LIMITS.short * loss.distance for each in around.said("rollback")
    ):
        return is_not("bad batch: the loss did not recover by itself, the training was rolled back")
    if episode.kind == "divergence" and episode.recovered:
        return is_not("bad batch: the loss was high in more than a few steps")
    points = int(((loss.steps >= episode.start) & (loss.steps <= episode.end)).sum())
    if not episode.recovered or points > LIMITS.short:
        lasted = "did not recover" if not episode.recovered else f"lasted {points} logged points"
        return is_not(f"bad batch: the jump {lasted}")
    if loss.quantity == "val_loss":
        return is_not(f"bad batch: only {loss.name} jumped, so no training batch explains it")
    width = "one logged point" if points == 1 else f"{points} logged points"
    evidence = [f"it lasted {width} and recovered by itself"]
    jumped = ""
    if around.norm is not None:
        usual, at = usual_norm(around), around.at(around.norm)
        at = at[np.isfinite(at)]
        if usual is not None and len(norms_before(around)) >= LIMITS.min_values and len(at):
            if float(at.max()) > LIMITS.with_it * usual > 0:
                jumped = ", and the gradient norm with it," if episode.kind != "gradient_explosion" else ""
                evidence.append(f"gradient norm {shown(float(at.max()))} in that step (baseline {shown(usual)})")
            else:
                evidence.append(f"gradient norm {shown(float(at.max()))} in that step, normal")
    if not jumped and len(loss.values) < LIMITS.min_points:
        return not_seen(f"bad batch: {len(loss.values)} logged points, so one point may stand for many batches")
    norm = f"the gradient norm of {episode.place}" if episode.place else "the gradient norm"
    what = norm if episode.kind == "gradient_explosion" else "the loss"
    said = f"Bad batch at {around.unit} {episode.start}: {what} jumped{jumped} and recovered."
    return is_it("bad_batch", said, *evidence, since=episode.start)


def returning_batch_check(around: EpisodeContext) -> CheckResult:
    """Whether single batches with about the same loss come again and again, as one sample does in each epoch."""
    loss = around.loss
    if loss is None or not around.every_step or loss.quantity == "val_loss" or len(loss.values) < LIMITS.min_points:
        return CheckResult()
    values = np.where(loss.finite, loss.values, -np.inf)
    level, top = float(np.median(values)), _top_near(around, values)
    high, between = values > level + LIMITS.as_high * (top - level), values > level + LIMITS.between * (top - level)
    begins = np.flatnonzero(high & ~np.r_[False, high[:-1]])
    longest = max((int(np.argmin(np.r_[high[at:], False])) for at in begins), default=0)
    others = int(between.sum() - high.sum())
    if len(begins) < LIMITS.returns or longest > LIMITS.short or others > len(begins) or between.mean() > LIMITS.rare:
        return CheckResult()
    steps = [int(each) for each in loss.steps[begins]]
    first = next((each for each in reversed(steps) if each <= around.latest), None)
    if first is None or around.episode.start - first > LOOKBACK.points:
        return CheckResult()
    apart = np.diff(steps)
    every = (
        f"every {apart[0]} {around.unit}s"
        if apart.min() == apart.max()
        else f"on average every {apart.mean():.0f} {around.unit}s"
    )
    heights = loss.values[begins]
    return is_it(
        "bad_batch",
        f"Bad batches: {len(steps)} losses of {shown(float(heights.min()))} to {shown(float(heights.max()))} among "
        f"losses of about {shown(level)}, {every}. The same samples probably return in each epoch.",
        listed_steps(steps, around.unit, LIMITS.in_a_row),
        since=first,
        remedies=(Remedy(Action.INSPECT_BATCH), Remedy(Action.FIND_COMMON_SAMPLES)),
    )


def _top_near(around: EpisodeContext, values: NDArray[np.float64]) -> float:
    steps = np.zeros(0) if around.loss is None else around.loss.steps
    there = (steps >= around.episode.start - LIMITS.searched) & (steps <= around.episode.end)
    return float(values[there].max(initial=-np.inf))


def _regular(around: EpisodeContext) -> str:
    """How often values about as high come anyway; empty: they do not."""
    curve = around.norm if around.episode.kind == "gradient_explosion" else around.loss
    before = np.zeros(0) if curve is None else around.before(curve, LOOKBACK.points)
    value = None if curve is None else value_at(curve, around.episode.start)
    if len(before) < LIMITS.min_values or value is None or not np.isfinite(value):
        return ""
    # A peak is compared with its neighbours: a loss that falls was as high at first.
    peaks = before[1:-1] - np.maximum(before[:-2], before[2:])
    count = int((peaks > LIMITS.no_exception * (value - float(np.median(before)))).sum())
    return (
        f"{count} of the {len(before)} values before rose a quarter as far or more" if count >= LIMITS.returns else ""
    )


def sudden_check(around: EpisodeContext) -> CheckResult:
    """Whether it came out of a sound training within one step, and went with the batch."""
    loss, step = around.loss, around.episode.start
    if loss is None or loss.quantity == "val_loss":
        return not_seen("bad batch: no training loss was logged")
    if not around.every_step:
        return not_seen("bad batch: the loss of each step was not logged")
    before = around.before(loss)
    if len(before) < LIMITS.min_values:
        return not_seen(f"bad batch: {len(before)} losses before it, {LIMITS.min_values} needed for a baseline")
    unsound = unsound_before(around)
    if unsound:
        return is_not(f"bad batch: {unsound}")
    usual, span = float(np.median(before)), float(before.max() - before.min())
    value = value_at(loss, step)
    if value is not None and np.isfinite(value) and value - usual > LIMITS.leap * span > 0:
        return _leap(around, loss, value, usual, span)
    return _cleared(around, loss, usual, span)


def _leap(around: EpisodeContext, loss: Curve, value: float, usual: float, span: float) -> CheckResult:
    step, norm = around.episode.start, around.norm
    evidence = [f"the step before was normal: {of_the_step_before(around)}"]
    there, before = None if norm is None else value_at(norm, step), usual_norm(around)
    if there is not None and before is not None:
        evidence.append(f"gradient norm {shown(there)} in that step (baseline {shown(before)})")
    stayed = _stayed(around, loss, value, usual, evidence)
    if stayed is not None:
        return stayed
    place = int(np.searchsorted(loss.steps, step, side="right"))
    if not around.episode.recovered and _is_as_high(loss.values[place : place + LIMITS.after], usual, value):
        return is_not("bad batch: the next losses are as high")
    if not around.episode.recovered and there is not None and before is not None and there <= LIMITS.with_it * before:
        return is_not(
            f"bad batch: gradient norm {shown(there)} at {around.unit} {step} (baseline {shown(before)}), so its "
            "optimizer step was no larger than others"
        )
    last = _last_of_the_leap(around, loss, usual, span)
    which = f"Bad batch at {around.unit} {step}" if last == step else f"Bad batches at {around.unit}s {step} to {last}"
    skipped = any(each.step == step for each in around.said("step_skipped"))
    after = "" if skipped or around.episode.recovered else " The optimizer step on it caused the rest."
    return is_it(
        "bad_batch",
        f"{which}: the loss jumped from {shown(usual)} to {shown(value)} in one step; the step before was "
        f"normal.{after}",
        *evidence,
        since=step,
    )


def _stayed(around: EpisodeContext, loss: Curve, value: float, usual: float, evidence: list[str]) -> CheckResult | None:
    """What else it was if the losses after the leap are as high as its own, which no optimizer step had changed yet."""
    step = around.episode.start
    place = int(np.searchsorted(loss.steps, step, side="right"))
    later = loss.values[place : place + LIMITS.in_a_row]
    if len(later) < LIMITS.in_a_row or not np.all(np.isfinite(later)):
        return None
    leap = f"the loss jumped from {shown(usual)} to {shown(value)} in one step"
    if _is_constant(later, value):
        return is_it(
            "constant_output",
            f"From {around.unit} {step} on the loss is {value:.4g} in every step: {leap}, and no batch changes it. The "
            "output, or the loss, no longer depends on the input.",
            *evidence,
            since=step,
        )
    return None


def _last_of_the_leap(around: EpisodeContext, loss: Curve, usual: float, span: float) -> int:
    """The last of a few steps that jumped as far and were followed by usual ones; the first where it went on."""
    step = around.episode.start
    place = int(np.searchsorted(loss.steps, step, side="left"))
    high = loss.values[place : place + LIMITS.in_a_row + 1] - usual > LIMITS.leap * span
    width = int(np.argmin(high)) if not high.all() else 0
    back = loss.values[place + width : place + width + LIMITS.afterwards] - usual
    return int(loss.steps[place + width - 1]) if width > 1 and len(back) and float(back.max()) < span else step


def _cleared(around: EpisodeContext, loss: Curve, usual: float, span: float) -> CheckResult:
    step = around.episode.start
    if not any(each.step == step for each in around.said("step_skipped")):
        return is_not("bad batch: the loss did not jump in one step")
    value = value_at(loss, step)
    if around.scale is not None and value is not None and np.isfinite(value):
        return is_not("bad batch: the loss was finite, and gradients are scaled")
    place = int(np.searchsorted(loss.steps, step, side="right"))
    later = loss.values[place : place + LIMITS.afterwards]
    until = int(loss.steps[place : place + LIMITS.afterwards].max(initial=step))
    if any(step <= each.step <= until for each in around.said("rollback")):
        return is_not("bad batch: the training was rolled back, so later batches used other weights")
    if (
        len(later) < LIMITS.afterwards
        or not np.all(np.isfinite(later))
        or float(np.abs(later - usual).max()) > LIMITS.normal_range * span
    ):
        return is_not("bad batch: the next batches were not normal either")
    gradients = _gradients_after(around)
    if gradients:
        return is_not(f"bad batch: {gradients}")
    broken = value is not None and not np.isfinite(value)
    what = f"its loss was {value}" if broken else "its gradients were non-finite or extremely large"
    return is_it(
        "bad_batch",
        f"Bad batch at {around.unit} {step}: {what}; the step was skipped, and the next batches were normal.",
        f"with the same weights the next batches gave normal losses, {shown(float(later.min()))} to "
        f"{shown(float(later.max()))}",
        f"the step before was normal: {of_the_step_before(around)}",
        since=step,
    )


def _gradients_after(around: EpisodeContext) -> str:
    """What was not as usual in the gradients of the steps after it; empty: nothing."""
    if around.norm is None:
        return ""
    place = int(np.searchsorted(around.norm.steps, around.episode.start, side="right"))
    after, before, usual = (
        around.norm.values[place : place + LIMITS.afterwards],
        norms_before(around),
        usual_norm(around),
    )
    if not np.all(np.isfinite(after)):
        return "the gradients of the next batches were non-finite as well"
    if usual is None or len(before) < LIMITS.min_values or not len(after):
        return ""
    highest = float(after.max())
    if highest <= max(LIMITS.with_it * usual, float(before.max())):
        return ""
    return (
        f"the next batches were not normal either, with a gradient norm of {shown(highest)} (baseline {shown(usual)})"
    )


def shrunk_weights(around: EpisodeContext) -> int | None:
    """Return the place, among measured weight norms, before or at which the weights were decayed away; else None."""
    norms = around.whole("param_norm")
    if norms is None:
        return None
    after = int(np.searchsorted(norms.steps, around.episode.start, side="left"))
    for place in (after, after + 1):
        if 0 < place < len(norms.steps):
            then, now = float(norms.values[place - 1]), float(norms.values[place])
            if np.isfinite(then) and np.isfinite(now) and now < LIMITS.shrunk * then:
                return place
    return None


def unsound_before(around: EpisodeContext) -> str:
    """What was not as usual in the step before; empty: nothing."""
    for curve, what in (
        (around.given_norm, "the gradient norm"),
        *(
            (rate, "the learning rate")
            for rate in around.rates
            if around.before(rate, LOOKBACK.points).min(initial=1) > 0
        ),
    ):
        values = np.zeros(0) if curve is None else around.before(curve, LOOKBACK.points)
        if len(values) < LIMITS.min_values:
            continue
        usual, last = float(np.median(values[-LIMITS.min_values :])), float(values[-1])
        if last > LIMITS.with_it * usual > 0:
            median = f"median of its last {LIMITS.min_values} values: {shown(usual)}"
            return f"{what} already {shown(last)} in the step before; {median}"
    return ""


def of_the_step_before(around: EpisodeContext) -> str:
    """The numbers of the last step before."""
    named = [
        (around.loss, "loss"),
        (around.norm, "gradient norm"),
        *((rate, "learning rate") for rate in around.rates[:1]),
    ]
    said = []
    for curve, what in named:
        values = np.zeros(0) if curve is None else around.before(curve)
        if len(values):
            said.append(f"{what} {shown(float(values[-1]))}")
    return ", ".join(said)


def value_at(curve: Curve, step: int) -> float | None:
    """What a curve has at a step; None: nothing."""
    place = int(np.searchsorted(curve.steps, step, side="left"))
    return float(curve.values[place]) if place < len(curve.steps) and curve.steps[place] == step else None


@dataclass(frozen=True, slots=True)
class Jump:
    """A loss that left its range in one step and stayed."""

    step: int
    usual: float
    value: float
    later: NDArray[np.float64]
    """The losses after it."""


def jump_near(around: EpisodeContext) -> Jump | None:
    """The first jump of the loss from `LIMITS.searched` points before an episode to its last possible beginning."""
    loss = around.loss
    if loss is None or not around.every_step or loss.quantity == "val_loss":
        return None
    start = int(np.searchsorted(loss.steps, around.episode.start, side="left"))
    end = int(np.searchsorted(loss.steps, around.latest, side="right"))
    candidates = range(max(LIMITS.jump_min_losses, start - LIMITS.searched), min(end, len(loss.values)))
    return next((jump for at in candidates if (jump := _jump_at(loss.steps, loss.values, at)) is not None), None)


def _jump_at(steps: NDArray[np.int64], values: NDArray[np.float64], at: int) -> Jump | None:
    before = values[max(0, at - LOOKBACK.just_before) : at]
    before, row = before[np.isfinite(before)], values[at : at + LIMITS.stay_above]
    if len(before) < LIMITS.jump_min_losses or len(row) < LIMITS.stay_above or not np.isfinite(row).all():
        return None
    top = float(before.max())
    if row[0] <= top or float(np.median(row)) <= top:
        return None
    usual = float(np.median(before))
    rise = float(row[0]) - usual
    if rise <= LIMITS.deviations * NORMAL_MAD * median_deviation(before) or rise < LIMITS.faded * (
        float(np.median(row)) - usual
    ):
        return None
    return Jump(int(steps[at]), usual, float(row[0]), values[at + 1 : at + 1 + LIMITS.after])


def _is_as_high(later: NDArray[np.float64], usual: float, value: float) -> bool:
    """Whether the losses after a jump are about as high as its own, which no optimizer step had changed yet."""
    rises = (later[: LIMITS.after] - usual) / (value - usual)
    if len(rises) < LIMITS.stay_above or not np.isfinite(rises).all() or _is_constant(later, value):
        return False
    return (
        float(rises.min()) > LIMITS.back
        and float(rises.max()) <= LIMITS.built_up
        and float(np.median(rises[: LIMITS.stay_above])) >= LIMITS.faded
    )


def _is_constant(later: NDArray[np.float64], value: float) -> bool:
    return float(np.abs(later - value).max()) <= LIMITS.same_number * abs(value)


def changed_at_once_check(around: EpisodeContext) -> CheckResult:
    """Whether the loss jumped in one step that no update explains, and stayed as high."""
    name = "changed data"
    if around.norm is None or not around.rates:
        return not_seen(f"{name}: gradient norm or learning rate not logged")
    jump = jump_near(around)
    if jump is None:
        return is_not(f"{name}: the loss did not jump in one step and stay")
    there = around.starting_at(jump.step)
    jumped = [
        each
        for rate in there.rates
        for each in jumps_in(rate)
        if each.step <= jump.step < each.step + LIMITS.rate_before
    ]
    if jumped:
        return is_not(f"{name}: the learning rate jumped at {around.unit} {jumped[0].step}")
    if there.foreign_write(jump.step) is not None:
        return is_not(f"{name}: other code wrote to the weights before {around.unit} {jump.step}")
    unsound = unsound_before(there)
    if unsound:
        return is_not(f"{name}: {unsound}")
    if shrunk_weights(there) is not None:
        return is_not(f"{name}: the weight norm fell at {around.unit} {jump.step}")
    if not _is_as_high(jump.later, jump.usual, jump.value):
        return is_not(f"{name}: the next losses were not as high")
    return is_it(
        "data_changed",
        f"The data or the loss function probably changed at {around.unit} {jump.step}: the loss jumped from "
        f"{shown(jump.usual)} to {shown(jump.value)} in one step, before any optimizer step on what came then, and was "
        f"{shown(float(jump.later[:3].min()))} to {shown(float(jump.later[:3].max()))} in the next 3 {around.unit}s.",
        f"the step before was normal: {of_the_step_before(there)}",
        since=jump.step,
        # Weights that something else wrote to look the same where they are not measured.
        certainty="likely" if there.of("param_norm") else "possible",
    )


CAUSES = (
    CauseDocumentation(
        "bad_batch",
        "One batch, or a few, caused it.",
        "One of: the loss jumped in one step and the step before was normal (where it did not recover: with the "
        "gradient norm, and the next losses were not all as high); a spike of at most three points recovered by "
        "itself; the batch itself was non-finite; the step was skipped and the next batches were normal; single "
        "losses of the same height return. Never named where values a quarter as high came three times in the "
        "{LOOKBACK.points} points before, as with heavy-tailed noise.",
        "An unstable step looks the same where gradient norm and learning rate are not logged.",
        (Remedy(Action.INSPECT_BATCH),),
        helped_by_smaller_updates=False,
    ),
)
CHECKS = (
    Check(changed_at_once_check, {Symptom.RISING: 12, Symptom.LARGE_UPDATES: 12}, frozenset({"data_changed"})),
    Check(returning_batch_check, {Symptom.RISING: 9}, frozenset({"bad_batch"})),
    Check(bad_batch_check, {Symptom.RISING: 20}, frozenset({"bad_batch", "constant_output"})),
)
