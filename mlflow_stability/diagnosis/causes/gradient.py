"""Find causes in the gradients: an explosion, slow growth, vanishing, missing zero_grad(), clipping that ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import CauseType, Check, CheckResult, cause_found, not_checked, ruled_out
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext, norm_baseline, norms_before
from mlflow_stability.diagnosis.findings.episodes import cleared_from
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion, GradientRiseFacts, GradientRiseRule
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishing
from mlflow_stability.kinds.reported.setup import MissingZeroGrad
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.text.phrases import counted


@dataclass(frozen=True, slots=True)
class GradientLimits:
    settled_after: int = 50  # maximum number of steps after gradients were cleared again for a missing zero_grad()
    explosion: float = 5.0  # minimum ratio of a gradient norm, also of a layer, to its baseline for an explosion, ...
    deviations: float = 6.0  # ... and minimum σ of its logarithm
    lost_to_rounding: float = 1e-10  # gradient norm of a layer that moves no weight: also below Adam's usual epsilon
    min_norms: int = 16  # minimum number of norms before an episode for a baseline, and of clipped ones to be regular
    layer_ends: float = 0.01  # share of the next layer's gradient norm below which gradients end in a layer
    clipped_share: float = 0.9  # minimum share of the steps before that were clipped
    shortened: float = 1.1  # ratio of a norm to the clipped norm above which clipping mattered, ...
    shortened_share: float = 0.1  # ... and minimum share of steps where it did
    beyond_limit: float = 1.5  # minimum ratio of a norm since then to the limit


LIMITS, VANISHED = GradientLimits(), GradientVanishing()


def kept_gradients_check(context: EpisodeContext) -> CheckResult:
    """Check whether the recording found that zero_grad() is missing; without such an event nothing is ruled out."""
    start, events = context.episode.start, context.history.events or ()
    for event in context.events_of(MissingZeroGrad.kind):
        until = cleared_from(event.step, events) or start
        if event.step <= context.latest and until >= start - LIMITS.settled_after:
            return cause_found(
                "gradients_not_cleared",
                f"Gradients were not cleared from {context.unit} {event.step} on; each step used those of the steps "
                "before it as well.",
                since=event.step,
                certainty="certain",
            )
    return CheckResult()


def explosion_check(context: EpisodeContext) -> CheckResult:
    """Check whether the gradients exploded before the loss did."""
    norm = context.norm
    if norm is None:
        return not_checked("gradient norm: not logged")
    before = norms_before(context)
    if len(before) < LIMITS.min_norms:
        values = counted(len(before), "value")
        return not_checked(f"gradient norm: {values} before it, {LIMITS.min_norms} needed for a baseline")
    recent, usual, spread = norm_baseline(before)
    lowest, highest, limit = float(recent.min()), float(recent.max()), LIMITS.explosion * usual
    if highest <= limit or np.log(highest) <= np.log(usual) + LIMITS.deviations * spread:
        return ruled_out(f"gradient explosion: norm {lowest:.3g} to {highest:.3g} just before (baseline {usual:.3g})")
    place, sentence = exploding_layer(context)
    near = np.flatnonzero((norm.steps < context.episode.start) & (norm.values > 0) & norm.finite)[-LOOKBACK.recent :]
    return cause_found(
        "gradient_explosion",
        f"The gradients exploded first: their norm reached {highest:.3g} within the {len(recent)} points before "
        f"(baseline {usual:.3g}).",
        f"gradient norm x {highest / usual:.3g}",
        sentence,
        since=int(norm.steps[near[norm.values[near] > limit][0]]),
        place=place,
    )


def growth_check(context: EpisodeContext) -> CheckResult:
    """Check whether the gradient norm had grown for long, too slowly to be an explosion."""
    if context.norm is None:
        return not_checked("gradient norm: not logged")
    losses = () if context.loss is None else (context.loss,)
    findings = GradientRiseRule().find(RunCurves(losses, (), (context.norm,), ())) if losses else []
    growth = next((finding for finding in findings if finding.start <= context.latest), None)
    facts = None if growth is None else growth.facts_as(GradientRiseFacts)
    if growth is None or facts is None:
        return ruled_out("slow growth of the gradient norm")
    episode = context.episode
    effect = "" if episode.kind == "gradient_explosion" else f"; the loss followed at {context.unit} {episode.start}"
    return cause_found(
        "gradient_explosion",
        f"The gradient norm kept growing from {context.unit} {growth.start} on, from {facts.level:.3g} to "
        f"{facts.last:.3g}{effect}.",
        f"gradient norm x {facts.grown:.3g}",
        since=growth.start,
        certainty="possible",
    )


def vanishing_check(context: EpisodeContext) -> CheckResult:
    """Check whether the gradients were too small to learn from."""
    episode, name = context.episode, "vanishing_gradients"
    place, sentence = last_layer_with_gradient(context)
    if episode.kind == "gradient_vanishing" and episode.place and place:
        statement = f"The gradients vanish {sentence}."
        return cause_found(name, statement, _model_norm(context), since=episode.start, place=place)
    events = context.events_of("gradient_vanishing") if episode.kind == "plateau" else []
    event = next((event for event in events if event.place and event.step <= episode.end), None)
    if event is not None:
        # A layer whose updates are lost to rounding cannot learn, whatever else is wrong.
        smallest = event.metrics.get("grad_norm", VANISHED.smallest)
        return cause_found(
            name,
            f"The gradients vanished while the loss did not fall: {event.message}",
            _model_norm(context),
            since=event.step,
            certainty="likely" if 0 < smallest < LIMITS.lost_to_rounding else "possible",
            place=event.place,
        )
    if context.norm is None:
        return not_checked("gradient norm: not logged")
    steps, values = context.norm.steps[context.norm.finite], context.norm.values[context.norm.finite]
    if len(values) < LIMITS.min_norms:
        return not_checked(f"gradient norm: {counted(len(values), 'value')}, {LIMITS.min_norms} are needed")
    tenth = max(3, len(values) // 10)
    first, last = float(np.median(values[:tenth])), float(np.median(values[-tenth:]))
    if last >= VANISHED.smallest and last >= VANISHED.share_of_start * first:
        return ruled_out(f"vanishing gradients: norm {last:.3g} at the end, {first:.3g} at the start")
    fell = f"fell from {first:.3g} to {last:.3g}"
    low = f"was {first:.3g} at the start and {last:.3g} at the end"
    high = np.flatnonzero(values >= first / 2)
    return cause_found(
        name,
        f"The gradients vanished: their norm {fell if last < 0.9 * first else low}.",
        f"gradient norm x {last / first:.2g}" if first > 0 else "the gradient norm was 0 from the start",
        sentence,
        since=int(steps[min(high[-1] + 1, len(steps) - 1)] if len(high) and first > 0 else steps[0]),
        place=place,
    )


def exploding_layer(context: EpisodeContext) -> tuple[str, str]:
    """Return the layer whose gradient rose most above its own baseline just before the episode, and a sentence."""
    candidates: list[tuple[float, str, str]] = []
    start = context.episode.start
    for curve in context.curves("grad_norm"):
        usable = (curve.steps <= start) & np.isfinite(curve.values)
        steps, values = curve.steps[usable], curve.values[usable]
        if not curve.place or len(values) < 4 or start - int(steps[-1]) > context.reach:
            continue
        usual, last = float(np.median(values[:-1])), float(values[-1])
        if last > LIMITS.explosion * usual > 0:
            value = f"{last:.3g} at {context.unit} {int(steps[-1])} (baseline {usual:.3g})"
            candidates.append((last / usual, curve.place, f"largest increase in {curve.place}: {value}"))
    return max(candidates)[1:] if candidates else ("", "")


def last_layer_with_gradient(context: EpisodeContext) -> tuple[str, str]:
    """Return the first layer, counted from the output, that gets almost no gradient, and a phrase; empty if none."""
    layers = [(curve.place, curve.values[curve.finite]) for curve in context.curves("grad_norm") if curve.place]
    norms = [(place, float(np.median(values[-3:]))) for place, values in layers if len(values)]
    for (place, norm), (later, above) in zip(norms[-2::-1], norms[:0:-1], strict=True):
        if norm < LIMITS.layer_ends * above:
            return place, f"from {place} down: norm {norm:.3g} there, {above:.3g} in {later} after it"
    return "", ""


def _model_norm(context: EpisodeContext) -> str:
    curve = context.model_curve("grad_norm")
    values = np.zeros(0) if curve is None else context.before(curve)
    return f"norm of all gradients: {values[-1]:.3g}" if len(values) else ""


def clipping_ended_check(context: EpisodeContext) -> CheckResult:
    """Check whether the script stopped clipping gradients before the episode."""
    norm, clipped = context.norm, context.clipped_norm
    if norm is None or clipped is None:
        return CheckResult()
    at = int(np.searchsorted(norm.steps, context.latest, side="right"))
    is_clipped = np.isin(norm.steps[:at], clipped.steps)
    if not is_clipped.any() or is_clipped[-1]:
        return CheckResult()
    end = int(np.flatnonzero(is_clipped)[-1]) + 1
    before, unclipped = slice(max(0, end - LOOKBACK.points), end), norm.values[end:at]
    after_clip = clipped.values[np.isin(clipped.steps, norm.steps[before])]
    before_clip = norm.values[before][is_clipped[before]]
    finite = np.isfinite(after_clip) & np.isfinite(before_clip)
    regular = finite.sum() >= LIMITS.min_norms and is_clipped[before].mean() >= LIMITS.clipped_share
    if not regular or len(unclipped) > LOOKBACK.points:
        return not_checked("end of clipping: it was not regular, or ended long before")
    limit = float(after_clip[finite].max())
    highest = float(np.nan_to_num(unclipped, nan=0.0, posinf=np.inf).max())
    shortened = float((before_clip[finite] > LIMITS.shortened * after_clip[finite]).mean())
    if shortened < LIMITS.shortened_share or highest < LIMITS.beyond_limit * limit:
        return ruled_out(f"end of clipping: it had hardly changed a gradient, norm {highest:.3g} since")
    first, last = int(norm.steps[end]), int(norm.steps[end - 1])
    return cause_found(
        "clipping_ended",
        f"Gradient clipping ended at {context.unit} {first}: up to {context.unit} {last} gradients were clipped to "
        f"{limit:.3g}, which shortened {shortened:.0%} of them; since then the optimizer is given gradients with a "
        f"norm of up to {highest:.3g}.",
        f"gradient norm before clipping {np.median(before_clip[finite]):.3g} (median of the last {int(finite.sum())} "
        "clipped steps)",
        since=first,
        remedies=(Remedy(Action.CLIP_GRADIENTS_AGAIN, target=limit, step=last),),
    )


CAUSES = (
    CauseType(
        "clipping_ended",
        "The script stopped clipping gradients.",
        "The gradients of at least {LIMITS.clipped_share:percent} of the steps before were clipped and none of the "
        "last steps; clipping had shortened at least {LIMITS.shortened_share:percent} of them by "
        "{LIMITS.shortened:rise} or more, and the norm since then is {LIMITS.beyond_limit} times the limit or more.",
        "Gradients that explode later for another reason, which clipping would have hidden.",
        (Remedy(Action.CLIP_GRADIENTS_AGAIN), Remedy(Action.RESTART_BEFORE_STEP)),
        phrase="end of gradient clipping",
    ),
    CauseType(
        "gradient_explosion",
        "The gradients exploded before the loss did.",
        "The gradient norm just before was {LIMITS.explosion} times its baseline and {LIMITS.deviations}σ above it, "
        "or kept growing.",
        "Large gradients that follow a rising loss; logging every step shows the order.",
        GradientExplosion.remedies,
    ),
    CauseType(
        "vanishing_gradients",
        "The gradients were too small to learn from.",
        "The gradient norm fell below {VANISHED.smallest}, or to {VANISHED.share_of_start:percent} of its start, "
        "while the loss did not fall; or layers before one of them get almost no gradient.",
        "A training that has converged has small gradients, too.",
        GradientVanishing.remedies,
    ),
    CauseType(
        "gradients_not_cleared",
        "Gradients accumulate because zero_grad() is missing.",
        "While it trained, the gradients of one step were seen to be there when the next began, in three steps in a "
        "row (finding `missing_zero_grad`).",
        "A script that adds gradients over several optimizer steps on purpose.",
        (Remedy(Action.CALL_ZERO_GRAD),),
        helped_by_smaller_updates=False,
        phrase="missing zero_grad()",
    ),
)
CHECKS = (
    Check(
        kept_gradients_check,
        {Symptom.NON_FINITE: 45, Symptom.RISING: 15, Symptom.STUCK: 15, Symptom.LARGE_UPDATES: 15, Symptom.INSIDE: 45},
        frozenset({"gradients_not_cleared"}),
    ),
    Check(
        clipping_ended_check,
        {Symptom.NON_FINITE: 15, Symptom.RISING: 8, Symptom.LARGE_UPDATES: 8},
        frozenset({"clipping_ended"}),
    ),
    Check(explosion_check, {Symptom.NON_FINITE: 60, Symptom.RISING: 50}, frozenset({"gradient_explosion"})),
    Check(growth_check, {Symptom.RISING: 80}, frozenset({"gradient_explosion"})),
    Check(
        vanishing_check,
        {Symptom.STUCK: 20, Symptom.VANISHING: 20, Symptom.DEAD_LAYER: 30, Symptom.REPEATED_DATA: 20},
        frozenset({"vanishing_gradients"}),
    ),
)
