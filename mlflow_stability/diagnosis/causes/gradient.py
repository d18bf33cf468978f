"""Looks for the cause in the gradients: an explosion before, a slow growth, none left at all, clipping that ended.

Gradients that were not cleared are a fact of the recording (`missing_zero_grad`), and are named by that alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext, norms_before, shown, split, usual_of
from mlflow_stability.diagnosis.findings.episodes import cleared_from
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion, GradientRiseFacts, GradientRiseRule
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishing
from mlflow_stability.kinds.reported.setup import MissingZeroGrad
from mlflow_stability.vocabulary.result import Action, Finding, Remedy
from mlflow_stability.vocabulary.text import counted


@dataclass(frozen=True, slots=True)
class GradientLimits:
    """Thresholds of the causes in the gradients."""

    settled_after: int = 50
    """Maximum number of steps after gradients were cleared again in which missing zero_grad() is the cause."""
    explosion: float = 5.0
    """Minimum ratio of a gradient norm to its baseline for an explosion, ..."""
    deviations: float = 6.0
    """... and minimum σ of its logarithm."""
    lost_to_rounding: float = 1e-10
    """Gradient norm of a layer below which none of its weights move: with Adam, too, it is below the usual epsilon."""
    min_norms: int = 16
    """Minimum number of gradient norms before an episode for a baseline."""
    layer_explosion: float = 5.0
    """Minimum ratio of a layer's gradient norm to its own baseline."""
    layer_ends: float = 0.01
    """Share of the next layer's gradient norm below which gradients end in a layer."""
    clipped_share: float = 0.9
    """Minimum share of the steps before that were clipped."""
    min_clipped: int = 16
    """Minimum number of clipped steps before that are looked at."""
    shortened: float = 1.1
    """Ratio of a norm to the clipped norm above which clipping mattered, ..."""
    shortened_share: float = 0.1
    """... and minimum share of steps in which it did."""
    beyond_limit: float = 1.5
    """Minimum ratio of a norm since then to the limit."""


LIMITS, VANISHED = GradientLimits(), GradientVanishing()


def kept_gradients_check(around: EpisodeContext) -> CheckResult:
    """Whether it was seen while it trained that nobody clears gradients; that it was not seen says nothing."""
    started, every = around.episode.start, around.history.events or ()
    before = (each for each in around.said(MissingZeroGrad.kind) if each.step <= around.latest)
    lasting = (each for each in before if (cleared_from(each.step, every) or started) >= started - LIMITS.settled_after)
    said = next(lasting, None)
    if said is None:
        return CheckResult()
    return is_it(
        "gradients_not_cleared",
        f"Gradients were not cleared from {around.unit} {said.step} on; each step used those of the steps "
        "before it as well.",
        since=said.step,
        certainty="certain",
    )


def explosion_check(around: EpisodeContext) -> CheckResult:
    """Whether the gradients exploded before the loss did."""
    if around.norm is None:
        return not_seen("gradient norm: not logged")
    before = norms_before(around)
    if len(before) < LIMITS.min_norms:
        there = counted(len(before), "value")
        return not_seen(f"gradient norm: {there} before it, {LIMITS.min_norms} needed for a baseline")
    recent, earlier = split(before)
    usual, spread = usual_of(earlier)
    highest = float(recent.max())
    if highest > LIMITS.explosion * usual and np.log(highest) > np.log(usual) + LIMITS.deviations * spread:
        layer = exploding_layer(around)
        return is_it(
            "gradient_explosion",
            f"The gradients exploded first: their norm reached {shown(highest)} within the {len(recent)} points "
            f"before (baseline {shown(usual)}).",
            f"gradient norm x {highest / usual:.3g}",
            "" if layer is None else layer.sentence,
            since=_since_exploded(around.norm, around.episode.start, LIMITS.explosion * usual),
            place="" if layer is None else layer.place,
        )
    lowest = float(recent.min())
    return is_not(f"gradient explosion: norm {shown(lowest)} to {shown(highest)} just before (baseline {shown(usual)})")


def growth_check(around: EpisodeContext) -> CheckResult:
    """Whether the gradient norm grew long before, too gradually to stand out just before."""
    grown = _growth(around)
    facts = None if grown is None else grown.known(GradientRiseFacts)
    if grown is None or facts is None:
        return is_not("slow growth of the gradient norm") if around.norm else not_seen("gradient norm: not logged")
    what = (
        ""
        if around.episode.kind == "gradient_explosion"
        else f"; the loss followed at {around.unit} {around.episode.start}"
    )
    return is_it(
        "gradient_explosion",
        f"The gradient norm kept growing from {around.unit} {grown.start} on, from {shown(facts.level)} to "
        f"{shown(facts.last)}{what}.",
        f"gradient norm x {facts.grown:.3g}",
        since=grown.start,
        certainty="possible",
    )


def _growth(around: EpisodeContext) -> Finding | None:
    if around.norm is None or around.loss is None:
        return None
    found = GradientRiseRule().find(RunCurves((around.loss,), (), (around.norm,), ()))
    return next((each for each in found if each.start <= around.latest), None)


def vanishing_check(around: EpisodeContext) -> CheckResult:
    """Whether there was no gradient left to learn from."""
    lost = around.episode if around.episode.kind == "gradient_vanishing" and around.episode.place else None
    layer = None if lost is None else last_layer_with_gradient(around)
    if lost is not None and layer is not None:
        what = f"The gradients vanish {layer.sentence}."
        return is_it("vanishing_gradients", what, *_of_the_whole(around), since=lost.start, place=layer.place)
    said = [each for each in around.said("gradient_vanishing") if each.place and around.episode.kind == "plateau"]
    said = [each for each in said if each.step <= around.episode.end]
    if said:
        what = f"The gradients vanished while the loss did not fall: {said[0].message}"
        evidence, place = _of_the_whole(around), said[0].place
        since = said[0].step
        # A layer whose updates are lost to rounding cannot learn, whatever else is the matter.
        lost_at = said[0].metrics.get("grad_norm", VANISHED.smallest)
        certainty = "likely" if 0 < lost_at < LIMITS.lost_to_rounding else "possible"
        return is_it("vanishing_gradients", what, *evidence, since=since, certainty=certainty, place=place)
    if around.norm is None:
        return not_seen("gradient norm: not logged")
    values = around.norm.values[around.norm.finite]
    if len(values) < LIMITS.min_norms:
        return not_seen(f"gradient norm: {counted(len(values), 'value')}, {LIMITS.min_norms} are needed")
    tenth = max(3, len(values) // 10)
    first, last = float(np.median(values[:tenth])), float(np.median(values[-tenth:]))
    if last < VANISHED.smallest or last < VANISHED.share_of_start * first:
        course = f"fell from {shown(first)} to {shown(last)}" if last < 0.9 * first else ""
        course = course or f"was {shown(first)} at the start and {shown(last)} at the end"
        layer = last_layer_with_gradient(around)
        return is_it(
            "vanishing_gradients",
            f"The gradients vanished: their norm {course}.",
            f"gradient norm x {last / first:.2g}" if first > 0 else "the gradient norm was 0 from the start",
            "" if layer is None else layer.sentence,
            since=_since_left(around.norm, first),
            place="" if layer is None else layer.place,
        )
    return is_not(f"vanishing gradients: norm {shown(last)} at the end, {shown(first)} at the start")


@dataclass(frozen=True, slots=True)
class LayerBefore:
    """The layer, and what speaks for it."""

    place: str
    sentence: str


def exploding_layer(around: EpisodeContext) -> LayerBefore | None:
    """The layer whose gradient stands out most from its own past, looked at just before or at the beginning."""
    found: list[tuple[float, str, str]] = []
    for curve in around.of("grad_norm"):
        near = (curve.steps <= around.episode.start) & np.isfinite(curve.values)
        steps, values = curve.steps[near], curve.values[near]
        if not curve.place or len(values) < 4 or around.episode.start - int(steps[-1]) > around.reach:
            continue
        usual, last = float(np.median(values[:-1])), float(values[-1])
        if last > LIMITS.layer_explosion * usual > 0:
            where = f"{shown(last)} at {around.unit} {int(steps[-1])}"
            said = f"largest increase in {curve.place}: {where} (baseline {shown(usual)})"
            found.append((last / usual, curve.place, said))
    return None if not found else LayerBefore(*max(found)[1:])


def last_layer_with_gradient(around: EpisodeContext) -> LayerBefore | None:
    """The layer from which on, counted from the output, next to nothing is left of the gradient."""
    layers = [(each.place, each.values[each.finite]) for each in around.of("grad_norm") if each.place]
    norms = [(place, float(np.median(values[-3:]))) for place, values in layers if len(values)]
    for (place, norm), (later, above) in zip(norms[-2::-1], norms[:0:-1], strict=True):
        if norm < LIMITS.layer_ends * above:
            said = f"from {place} down: norm {shown(norm)} there, {shown(above)} in {later} after it"
            return LayerBefore(place, said)
    return None


def _since_exploded(norm: Curve, start: int, limit: float) -> int:
    """The first of the points just before at which the norm stood above a limit."""
    near = np.flatnonzero((norm.steps < start) & (norm.values > 0) & norm.finite)[-LOOKBACK.recent :]
    return int(norm.steps[near[norm.values[near] > limit][0]])


def _since_left(norm: Curve, first: float) -> int:
    """The first point after the last at which the norm was half of what it was at first."""
    steps, values = norm.steps[norm.finite], norm.values[norm.finite]
    high = np.flatnonzero(values >= first / 2)
    return int(steps[min(int(high[-1]) + 1, len(steps) - 1)]) if len(high) and first > 0 else int(steps[0])


def _of_the_whole(around: EpisodeContext) -> tuple[str, ...]:
    whole = around.whole("grad_norm")
    values = np.zeros(0) if whole is None else around.before(whole)
    return (f"norm of all gradients: {shown(float(values[-1]))}",) if len(values) else ()


def clipping_ended_check(around: EpisodeContext) -> CheckResult:
    """Whether the script stopped clipping gradients before it began."""
    norm, clipped = around.norm, around.clipped_norm
    if norm is None:
        return CheckResult()
    if clipped is None:
        return CheckResult()
    at = int(np.searchsorted(norm.steps, around.latest, side="right"))
    is_clipped = np.isin(norm.steps[:at], clipped.steps)
    if not is_clipped.any() or is_clipped[-1]:
        return CheckResult()
    end = int(np.flatnonzero(is_clipped)[-1]) + 1
    before = slice(max(0, end - LOOKBACK.points), end)
    since = norm.values[end:at]
    given = clipped.values[np.isin(clipped.steps, norm.steps[before])]
    taken = norm.values[before][is_clipped[before]]
    known = np.isfinite(given) & np.isfinite(taken)
    if (
        known.sum() < LIMITS.min_clipped
        or is_clipped[before].mean() < LIMITS.clipped_share
        or len(since) > LOOKBACK.points
    ):
        return not_seen("end of clipping: it was not regular, or ended long before")
    limit = float(given[known].max())
    highest = float(np.nan_to_num(since, nan=0.0, posinf=np.inf).max())
    shortened = float((taken[known] > LIMITS.shortened * given[known]).mean())
    if shortened < LIMITS.shortened_share or highest < LIMITS.beyond_limit * limit:
        return is_not(f"end of clipping: it had hardly changed a gradient, norm {shown(highest)} since")
    first, last = int(norm.steps[end]), int(norm.steps[end - 1])
    return is_it(
        "clipping_ended",
        f"Gradient clipping ended at {around.unit} {first}: up to {around.unit} {last} gradients were clipped to "
        f"{shown(limit)}, which shortened {shortened:.0%} of them; since then the optimizer is given gradients with a "
        f"norm of up to {shown(highest)}.",
        f"gradient norm before clipping {shown(float(np.median(taken[known])))} (median of the last {int(known.sum())} "
        "clipped steps)",
        since=first,
        remedies=(Remedy(Action.CLIP_GRADIENTS_AGAIN, target=limit, step=last),),
    )


CAUSES = (
    CauseDocumentation(
        "clipping_ended",
        "The script stopped clipping gradients.",
        "The gradients of at least {LIMITS.clipped_share:percent} of the steps before were clipped and none of the "
        "last steps; clipping had shortened at least {LIMITS.shortened_share:percent} of them by "
        "{LIMITS.shortened:rise} or more, and the norm since then is {LIMITS.beyond_limit} times the limit or more.",
        "Gradients that explode later for another reason, which clipping would have hidden.",
        (Remedy(Action.CLIP_GRADIENTS_AGAIN), Remedy(Action.RESTART_BEFORE_STEP)),
        phrase="end of gradient clipping",
    ),
    CauseDocumentation(
        "gradient_explosion",
        "The gradients exploded before the loss did.",
        "The gradient norm just before was {LIMITS.explosion} times its baseline and {LIMITS.deviations}σ above it, "
        "or kept growing.",
        "Large gradients that follow a rising loss; logging every step shows the order.",
        GradientExplosion.remedies,
    ),
    CauseDocumentation(
        "vanishing_gradients",
        "The gradients were too small to learn from.",
        "The gradient norm fell below {VANISHED.smallest}, or to {VANISHED.share_of_start:percent} of its start, "
        "while the loss did not fall; or layers before one of them get almost no gradient.",
        "A training that has converged has small gradients, too.",
        GradientVanishing.remedies,
    ),
    CauseDocumentation(
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
_KEPT = frozenset({"gradients_not_cleared"})
CHECKS = (
    Check(
        kept_gradients_check,
        {Symptom.NON_FINITE: 45, Symptom.RISING: 15, Symptom.STUCK: 15, Symptom.LARGE_UPDATES: 15, Symptom.INSIDE: 45},
        _KEPT,
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
