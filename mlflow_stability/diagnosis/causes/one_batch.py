"""Find causes in the data: a bad batch, batches that return, data or a loss function that changed.

The loss of a batch is computed before the optimizer step on it. If gradient norm, learning rate and weights of the step
before were normal, the batch made the loss jump. This is certain if the step was skipped and the next batches are
normal on the same weights. If the losses after the jump are as high, the data or the loss function changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import NORMAL_MAD, Curve, median_deviation
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import CauseType, Check, CheckResult, cause_found, not_checked, ruled_out
from mlflow_stability.diagnosis.causes.context import (
    LOOKBACK,
    EpisodeContext,
    jumps_in,
    listed_steps,
    norms_before,
    usual_norm,
    value_at,
)
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class BatchLimits:
    with_it: float = 3.0  # minimum ratio of a gradient norm that jumps with the loss to its baseline
    short: int = 3  # maximum number of logged points of a spike of one batch
    min_points: int = 50  # minimum number of points of a curve; one with fewer may log an epoch in each
    min_values: int = 16  # minimum number of values before an episode for a baseline
    jump: float = 10.0  # factor on the range of the last points above which no usual update explains a rise
    in_a_row: int = 8  # maximum number of bad batches in a row
    afterwards: int = 3  # number of steps after a skipped one that must be normal to rule out the weights
    normal_range: float = 2.0  # factor on the range of the last points within which losses of these steps are normal
    same_number: float = 1e-06  # relative difference up to which losses are the same number but for rounding
    returns: int = 3  # minimum number of times that a batch returns, ...
    as_high: float = 0.5  # ... each rising by this share of the highest loss near, ...
    between: float = 0.1  # ... with nearly no other loss that rises by this share of it, ...
    rare: float = 0.1  # ... and at most this share of all losses
    no_exception: float = 0.25  # share of its rise that values before must reach, `returns` times, if it is usual
    searched: int = 48  # maximum number of points between a jump and the divergence that is found
    deviations: float = 6.0  # minimum rise of a jump in σ of the losses before
    stay_above: int = 4  # number of losses from the jump on whose median must stay above the range before
    after: int = 8  # number of losses after the jump that are compared with it, ...
    built_up: float = 3.0  # ... and at most this multiple of it: a training that diverges multiplies its loss
    shrunk: float = 0.7  # share of the weight norm of the measurement before below which the weights were decayed away
    grown: float = 3.0  # the same, above which it jumped
    faded: float = 0.35
    """Minimum share of the jump of the median of the next `stay_above` losses: the step on a bad batch leaves less."""
    back: float = 0.05  # share of the jump up to which a loss is normal again: then it was some batches
    rate_before: int = 8  # number of steps before a jump within which a jump of the learning rate explains it


LIMITS = BatchLimits()
Values = NDArray[np.float64]


def bad_batch_check(context: EpisodeContext) -> CheckResult:
    """Check for one bad batch: a spike of a few steps that recovered by itself, or a jump within one step."""
    episode, loss = context.episode, context.loss
    if loss is None:
        return not_checked("bad batch: no loss was logged")
    common = _common_values(context)
    if common:
        return ruled_out(f"bad batch: {common}")
    sudden = sudden_check(context)
    if sudden.cause is not None:
        return sudden
    last = episode.end + LIMITS.short * loss.distance
    if any(episode.start <= event.step <= last for event in context.events_of("rollback")):
        return ruled_out("bad batch: the loss did not recover by itself, the training was rolled back")
    if episode.kind == "divergence" and episode.recovered:
        return ruled_out("bad batch: the loss was high in more than a few steps")
    points = int(((loss.steps >= episode.start) & (loss.steps <= episode.end)).sum())
    if not episode.recovered:
        return ruled_out("bad batch: the jump did not recover")
    if points > LIMITS.short:
        return ruled_out(f"bad batch: the jump lasted {points} logged points")
    if loss.quantity == "val_loss":
        return ruled_out(f"bad batch: only {loss.name} jumped, so no training batch explains it")
    evidence = [f"it lasted {'one logged point' if points == 1 else f'{points} logged points'} and recovered by itself"]
    is_explosion, jumped = episode.kind == "gradient_explosion", ""
    usual, norms = usual_norm(context), np.zeros(0) if context.norm is None else context.during(context.norm)
    norms = norms[np.isfinite(norms)]
    if usual is not None and len(norms_before(context)) >= LIMITS.min_values and len(norms):
        highest = float(norms.max())
        if highest > LIMITS.with_it * usual > 0:
            jumped = "" if is_explosion else ", and the gradient norm with it,"
            evidence.append(f"gradient norm {highest:.3g} in that step (baseline {usual:.3g})")
        else:
            evidence.append(f"gradient norm {highest:.3g} in that step, normal")
    if not jumped and len(loss.values) < LIMITS.min_points:
        return not_checked(f"bad batch: {len(loss.values)} logged points, so one point may stand for many batches")
    name = "the loss"
    if is_explosion:
        name = f"the gradient norm of {episode.place}" if episode.place else "the gradient norm"
    statement = f"Bad batch at {context.unit} {episode.start}: {name} jumped{jumped} and recovered."
    return cause_found("bad_batch", statement, *evidence, since=episode.start)


def returning_batch_check(context: EpisodeContext) -> CheckResult:
    """Check whether single batches of about the same loss return, as one sample does in each epoch."""
    loss, episode = context.loss, context.episode
    if loss is None or not context.every_step or loss.quantity == "val_loss" or len(loss.values) < LIMITS.min_points:
        return CheckResult()
    values = np.where(loss.finite, loss.values, -np.inf)
    is_near = (loss.steps >= episode.start - LIMITS.searched) & (loss.steps <= episode.end)
    level, top = float(np.median(values)), float(values[is_near].max(initial=-np.inf))
    high, raised = values > level + LIMITS.as_high * (top - level), values > level + LIMITS.between * (top - level)
    begins = np.flatnonzero(high & ~np.r_[False, high[:-1]])
    longest = max((int(np.argmin(np.r_[high[at:], False])) for at in begins), default=0)
    others = int(raised.sum() - high.sum())
    if len(begins) < LIMITS.returns or longest > LIMITS.short or others > len(begins) or raised.mean() > LIMITS.rare:
        return CheckResult()
    steps = loss.steps[begins].tolist()
    first = next((step for step in reversed(steps) if step <= context.latest), None)
    if first is None or episode.start - first > LOOKBACK.points:
        return CheckResult()
    apart = np.diff(steps)
    period = f"every {apart[0]}" if apart.min() == apart.max() else f"on average every {apart.mean():.0f}"
    heights = loss.values[begins]
    return cause_found(
        "bad_batch",
        f"Bad batches: {len(steps)} losses of {heights.min():.3g} to {heights.max():.3g} among losses of about "
        f"{level:.3g}, {period} {context.unit}s. The same samples probably return in each epoch.",
        listed_steps(steps, context.unit, LIMITS.in_a_row),
        since=first,
        remedies=(Remedy(Action.INSPECT_BATCH), Remedy(Action.FIND_COMMON_SAMPLES)),
    )


def _common_values(context: EpisodeContext) -> str:
    """Return how many values before rose about as far; empty if the episode is an exception."""
    curve = context.norm if context.episode.kind == "gradient_explosion" else context.loss
    before = np.zeros(0) if curve is None else context.before(curve, LOOKBACK.points)
    value = None if curve is None else value_at(curve, context.episode.start)
    if len(before) < LIMITS.min_values or value is None or not np.isfinite(value):
        return ""
    # A peak is compared with its neighbours: a loss that falls was as high at first.
    peaks = before[1:-1] - np.maximum(before[:-2], before[2:])
    count = int((peaks > LIMITS.no_exception * (value - float(np.median(before)))).sum())
    if count < LIMITS.returns:
        return ""
    return f"{count} of the {len(before)} values before rose a quarter as far or more"


def sudden_check(context: EpisodeContext) -> CheckResult:
    """Check whether a normal training broke within one step, because of its batch."""
    loss, step = context.loss, context.episode.start
    if loss is None or loss.quantity == "val_loss":
        return not_checked("bad batch: no training loss was logged")
    if not context.every_step:
        return not_checked("bad batch: the loss of each step was not logged")
    before = context.before(loss)
    if len(before) < LIMITS.min_values:
        return not_checked(f"bad batch: {len(before)} losses before it, {LIMITS.min_values} needed for a baseline")
    abnormal = abnormal_before(context)
    if abnormal:
        return ruled_out(f"bad batch: {abnormal}")
    usual, spread = float(np.median(before)), float(before.max() - before.min())
    value = value_at(loss, step)
    if value is not None and np.isfinite(value) and value - usual > LIMITS.jump * spread > 0:
        return _jump_check(context, loss, value, usual, spread)
    return _broken_step_check(context, loss, usual, spread)


def _jump_check(context: EpisodeContext, loss: Curve, value: float, usual: float, spread: float) -> CheckResult:
    step, recovered = context.episode.start, context.episode.recovered
    norm, usual_gradient = None if context.norm is None else value_at(context.norm, step), usual_norm(context)
    evidence = [f"the step before was normal: {_step_before(context)}"]
    if norm is not None and usual_gradient is not None:
        evidence.append(f"gradient norm {norm:.3g} in that step (baseline {usual_gradient:.3g})")
    place = int(np.searchsorted(loss.steps, step, side="right"))
    later = loss.values[place : place + LIMITS.in_a_row]
    jump = f"the loss jumped from about {usual:.3g} to {value:.3g} in one step"
    if len(later) == LIMITS.in_a_row and np.isfinite(later).all() and _is_constant(later, value):
        return cause_found(
            "constant_output",
            f"From {context.unit} {step} on the loss is {value:.4g} in every step: {jump}, and no batch changes it. "
            "The output, or the loss, no longer depends on the input.",
            *evidence,
            since=step,
        )
    if not recovered and _stays_high(loss.values[place : place + LIMITS.after], usual, value):
        return ruled_out("bad batch: the next losses are as high")
    if not recovered and norm is not None and usual_gradient is not None and norm <= LIMITS.with_it * usual_gradient:
        return ruled_out(
            f"bad batch: gradient norm {norm:.3g} at {context.unit} {step} (baseline {usual_gradient:.3g}), so its "
            "optimizer step was no larger than others"
        )
    last = _last_of_jump(loss, step, usual, spread)
    batch = (
        f"Bad batch at {context.unit} {step}" if last == step else f"Bad batches at {context.unit}s {step} to {last}"
    )
    skipped = any(event.step == step for event in context.events_of("step_skipped"))
    effect = "" if skipped or recovered else " The optimizer step on it caused the rest."
    return cause_found("bad_batch", f"{batch}: {jump}; the step before was normal.{effect}", *evidence, since=step)


def _last_of_jump(loss: Curve, step: int, usual: float, spread: float) -> int:
    """Return the last step of a short run of high losses that begins at `step`; else `step`."""
    place = int(np.searchsorted(loss.steps, step, side="left"))
    high = loss.values[place : place + LIMITS.in_a_row + 1] - usual > LIMITS.jump * spread
    width = 0 if high.all() else int(np.argmin(high))
    next_rises = loss.values[place + width : place + width + LIMITS.afterwards] - usual
    return int(loss.steps[place + width - 1]) if width > 1 and next_rises.max(initial=-np.inf) < spread else step


def _broken_step_check(context: EpisodeContext, loss: Curve, usual: float, spread: float) -> CheckResult:
    """Check whether the step was skipped, or its loss non-finite, and the next batches were normal."""
    step = context.episode.start
    value, skipped = value_at(loss, step), any(event.step == step for event in context.events_of("step_skipped"))
    broken = value is not None and not np.isfinite(value)
    if not skipped and not broken:
        return ruled_out("bad batch: the loss did not jump in one step")
    if context.scale is not None and value is not None and np.isfinite(value):
        return ruled_out("bad batch: the loss was finite, and gradients are scaled")
    place = int(np.searchsorted(loss.steps, step, side="right"))
    after = slice(place, place + LIMITS.afterwards)
    later, until = loss.values[after], int(loss.steps[after].max(initial=step))
    if any(step <= event.step <= until for event in context.events_of("rollback")):
        return ruled_out("bad batch: the training was rolled back, so later batches used other weights")
    # A comparison with NaN is false.
    normal = len(later) == LIMITS.afterwards and np.abs(later - usual).max() <= LIMITS.normal_range * spread
    if not normal:
        return ruled_out("bad batch: the next batches were not normal either")
    gradients = _abnormal_gradients_after(context)
    if gradients:
        return ruled_out(f"bad batch: {gradients}")
    reason = f"its loss was {value}" if broken else "its gradients were non-finite or extremely large"
    norm = None if context.norm is None else value_at(context.norm, step)
    has_slope = not broken and norm is not None and not np.isfinite(norm)
    if has_slope:
        reason = "its loss was finite, and its gradients were not"
    and_skipped = "; the step was skipped, and " if skipped else "; "
    weights = "with the same weights" if skipped else "after the optimizer step on it"
    return cause_found(
        "bad_batch",
        f"Bad batch at {context.unit} {step}: {reason}{and_skipped}the next batches were normal.",
        f"{weights} the next batches gave normal losses, {later.min():.3g} to {later.max():.3g}",
        f"the step before was normal: {_step_before(context)}",
        since=step,
        remedies=(Remedy(Action.CHECK_INFINITE_SLOPES), Remedy(Action.INSPECT_BATCH)) if has_slope else (),
    )


def _abnormal_gradients_after(context: EpisodeContext) -> str:
    """Return what was abnormal in the gradients of the next steps; empty if nothing was."""
    if context.norm is None:
        return ""
    place = int(np.searchsorted(context.norm.steps, context.episode.start, side="right"))
    after = context.norm.values[place : place + LIMITS.afterwards]
    if not np.isfinite(after).all():
        return "the gradients of the next batches were non-finite as well"
    before, usual = norms_before(context), usual_norm(context)
    highest = float(after.max(initial=-np.inf))
    if usual is None or len(before) < LIMITS.min_values or highest <= max(LIMITS.with_it * usual, before.max()):
        return ""
    return f"the next batches were not normal either, with a gradient norm of {highest:.3g} (baseline {usual:.3g})"


def shrunk_weights(context: EpisodeContext) -> int | None:
    """Return the index among measured weight norms before or at which the weights were decayed away, or None."""
    return next((place for place, ratio in _norm_ratios(context) if ratio < LIMITS.shrunk), None)


def _norm_ratios(context: EpisodeContext) -> Iterator[tuple[int, float]]:
    """Yield indices of the first two weight norms since the episode began, with ratios to the ones before."""
    norms = context.model_curve("param_norm")
    if norms is None:
        return
    after = int(np.searchsorted(norms.steps, context.episode.start, side="left"))
    for place in (after, after + 1):
        if 0 < place < len(norms.steps):
            before, now = norms.values[place - 1 : place + 1].tolist()
            if np.isfinite(before) and np.isfinite(now) and before > 0:
                yield place, now / before


def abnormal_before(context: EpisodeContext) -> str:
    """Return what was abnormal in the step before the episode; empty if nothing was."""
    named = [("the gradient norm", context.optimizer_norm), *(("the learning rate", rate) for rate in context.rates)]
    for name, curve in named:
        values = np.zeros(0) if curve is None else context.before(curve, LOOKBACK.points)
        is_warming_up = name == "the learning rate" and values.min(initial=1.0) <= 0
        if len(values) < LIMITS.min_values or is_warming_up:
            continue
        usual, last = float(np.median(values[-LIMITS.min_values :])), float(values[-1])
        if last > LIMITS.with_it * usual > 0:
            median = f"median of its last {LIMITS.min_values} values: {usual:.3g}"
            return f"{name} already {last:.3g} in the step before; {median}"
    for rate in (rate for rate in context.rates if len(rate.steps)):
        first, before = int(rate.steps[0]), context.highest_rate_before(rate)
        is_just_after = 0 < context.episode.start - first <= LOOKBACK.between_looks
        if is_just_after and before is not None and rate.values[0] > LIMITS.with_it * before:
            return f"another optimizer took over at {context.unit} {first}, at {rate.values[0]:.3g} after {before:.3g}"
    return ""


def _step_before(context: EpisodeContext) -> str:
    named = [(context.loss, "loss"), (context.norm, "gradient norm")]
    named += [(rate, "learning rate") for rate in context.rates[:1]]
    values = [(name, context.before(curve)) for curve, name in named if curve is not None]
    return ", ".join(f"{name} {before[-1]:.3g}" for name, before in values if len(before))


@dataclass(frozen=True, slots=True)
class Jump:
    """A loss that left its range in one step and stayed."""

    step: int
    usual: float
    value: float
    later: Values  # the losses after it


def jump_near(context: EpisodeContext) -> Jump | None:
    """Return the first jump of the loss from `LIMITS.searched` points before an episode to its latest start."""
    loss = context.loss
    if loss is None or not context.every_step or loss.quantity == "val_loss":
        return None
    start = int(np.searchsorted(loss.steps, context.episode.start, side="left"))
    end = int(np.searchsorted(loss.steps, context.latest, side="right"))
    for at in range(max(LIMITS.min_values, start - LIMITS.searched), min(end, len(loss.values))):
        before, row = loss.values[max(0, at - LOOKBACK.just_before) : at], loss.values[at : at + LIMITS.stay_above]
        before = before[np.isfinite(before)]
        if len(before) < LIMITS.min_values or len(row) < LIMITS.stay_above or not np.isfinite(row).all():
            continue
        usual, lasting = float(np.median(before)), float(np.median(row))
        rise, noise = float(row[0]) - usual, NORMAL_MAD * median_deviation(before)
        stays_above = min(float(row[0]), lasting) > float(before.max())
        if stays_above and rise > LIMITS.deviations * noise and rise >= LIMITS.faded * (lasting - usual):
            return Jump(int(loss.steps[at]), usual, float(row[0]), loss.values[at + 1 : at + 1 + LIMITS.after])
    return None


def _stays_high(later: Values, usual: float, value: float) -> bool:
    """Return whether the losses after a jump are about as high, though no optimizer step had changed the jump."""
    rises = (later - usual) / (value - usual)
    if len(rises) < LIMITS.stay_above or not np.isfinite(rises).all() or _is_constant(later, value):
        return False
    lasting = float(np.median(rises[: LIMITS.stay_above]))
    return bool(rises.min() > LIMITS.back and rises.max() <= LIMITS.built_up and lasting >= LIMITS.faded)


def _is_constant(later: Values, value: float) -> bool:
    return float(np.abs(later - value).max()) <= LIMITS.same_number * abs(value)


def changed_at_once_check(context: EpisodeContext) -> CheckResult:
    """Check whether the loss jumped in one step that no update explains, and stayed as high."""
    name, unit = "changed data", context.unit
    if context.norm is None or not context.rates:
        return not_checked(f"{name}: gradient norm or learning rate not logged")
    if context.loss is not None and not context.loss.has_level:
        return not_checked(f"{name}: the training itself moves the level of this loss")
    jump = jump_near(context)
    if context.loss is None or jump is None:
        return ruled_out(f"{name}: the loss did not jump in one step and stay")
    at_jump = context.starting_at(jump.step)
    for rate in context.rates:
        for rise in jumps_in(rate):
            if rise.step <= jump.step < rise.step + LIMITS.rate_before:
                return ruled_out(f"{name}: the learning rate jumped at {unit} {rise.step}")
    if at_jump.foreign_write(jump.step) is not None:
        return ruled_out(f"{name}: other code wrote to the weights before {unit} {jump.step}")
    abnormal = abnormal_before(at_jump)
    if abnormal:
        return ruled_out(f"{name}: {abnormal}")
    if shrunk_weights(at_jump) is not None:
        return ruled_out(f"{name}: the weight norm fell at {unit} {jump.step}")
    if any(ratio > LIMITS.grown for _, ratio in _norm_ratios(at_jump)):
        return ruled_out(f"{name}: the weight norm jumped, too")
    if not _stays_high(jump.later, jump.usual, jump.value):
        return ruled_out(f"{name}: the next losses were not as high")
    # With each new episode of a game, or each sample of a kind, a loss jumps again.
    values = context.loss.values[context.loss.steps < jump.step][-LOOKBACK.points :]
    count = int((np.diff(values) >= LIMITS.no_exception * (jump.value - jump.usual)).sum())
    if count >= LIMITS.returns:
        common = f"in {count} of the {len(values)} steps before it jumped a quarter as far or more"
        return ruled_out(f"{name}: {common}")
    return cause_found(
        "data_changed",
        f"The data or the loss function probably changed at {unit} {jump.step}: the loss jumped from about "
        f"{jump.usual:.3g} to {jump.value:.3g} in one step, before any optimizer step on what came then, and was "
        f"{jump.later[:3].min():.3g} to {jump.later[:3].max():.3g} in the next 3 {unit}s.",
        f"the step before was normal: {_step_before(at_jump)}",
        since=jump.step,
        # Weights that other code wrote to look the same where they are not measured.
        certainty="likely" if at_jump.curves("param_norm") else "possible",
    )


CAUSES = (
    CauseType(
        "bad_batch",
        "One batch, or a few, caused it.",
        "One of: the loss jumped in one step and the step before was normal (where it did not recover: with the "
        "gradient norm, and the next losses were not all as high); a spike of at most three points recovered by "
        "itself; the batch itself was non-finite; the step was skipped, or its loss non-finite, and the next batches "
        "were normal; single losses of the same height return. Never named where values a quarter as high came three "
        "times in the {LOOKBACK.points} points before, as with heavy-tailed noise.",
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
