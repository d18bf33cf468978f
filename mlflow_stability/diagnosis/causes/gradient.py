"""Looks for the cause in the gradients: an explosion before, a slow growth, or none left at all.

Looks for the cause in gradients that are never cleared.

The argument: a sum of gradients that nobody clears grows by about one gradient in each step, evenly and ever more
slowly in relation to itself, while the loss is still as usual; a training that diverges multiplies its gradients, and
its loss with them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.detectors.engine import Symptom
from mlflow_stability.detectors.gradients import GradientExplosion, GradientVanishing
from mlflow_stability.detectors.reported import MissingZeroGrad
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import RECENT, EpisodeContext, norms_before, shown, split, usual_of
from mlflow_stability.diagnosis.causes.layer_norms_before import exploding_layer, last_layer_with_gradient
from mlflow_stability.diagnosis.curves.curves import Curve, RunCurves
from mlflow_stability.diagnosis.findings.uncleared_gradients import cleared_from
from mlflow_stability.diagnosis.rules.gradient_rise import GradientRiseRule
from mlflow_stability.vocabulary.result import Episode
from mlflow_stability.vocabulary.text import counted

FEWEST_SUMMED = 8
"""So many steps of growth at least."""
USUAL = 64
"""So many norms before tell what is usual."""
GROWN = 2.5
"""The norm must have grown by so much while the loss was as usual."""
SETTLED_AFTER = 50
"""What begins more steps after gradients were cleared again has another cause."""
NEAR = 16
"""The growth ends at most so many points before or after the beginning of the trouble."""
MOSTLY = 0.6
"""This share of the steps at least went up."""


def kept_gradients_check(around: EpisodeContext) -> CheckResult:
    """Whether it was seen while it trained that nobody clears gradients; that it was not seen says nothing."""
    started, every = around.episode.start, around.history.events or ()
    before = (each for each in around.said(MissingZeroGrad.kind) if each.step <= around.latest)
    lasting = (each for each in before if (cleared_from(each.step, every) or started) >= started - SETTLED_AFTER)
    said = next(lasting, None)
    if said is None:
        return CheckResult()
    return is_it(
        "gradients_not_cleared",
        f"Gradients were not cleared from step {said.step} on; each step used those of the steps before it as well.",
        since=said.step,
        certainty="certain",
    )


def accumulation_check(around: EpisodeContext) -> CheckResult:
    """Whether gradients pile up because nothing clears them between steps."""
    loss, norm = around.loss, around.norm
    if loss is None or norm is None or not around.every_step or not np.array_equal(loss.steps, norm.steps):
        return not_seen("missing zero_grad(): loss and gradient norm of each step were not logged")
    start = int(np.searchsorted(norm.steps, around.episode.start, side="right"))
    if (
        start < USUAL + FEWEST_SUMMED
        or not np.isfinite([norm.values[:start][-USUAL:], loss.values[:start][-USUAL:]]).all()
    ):
        return not_seen("missing zero_grad(): too few steps before it")
    # What was found may begin anywhere in the growth, or a little behind it.
    ends = range(min(start + NEAR, len(norm.values)), start - NEAR, -1)
    sums = ((end, _sum_like(norm.values[:end], loss.values[:end])) for end in ends)
    end, grown = next((each for each in sums if each[1] is not None), (start, None))
    if grown is None:
        return is_not("missing zero_grad(): the gradient norm did not grow steadily while the loss was normal")
    return is_it(
        "gradients_not_cleared",
        f"The gradient norm grew steadily from {shown(float(grown[0]))} to {shown(float(grown[-1]))} in the "
        f"{len(grown)} steps to step {int(norm.steps[end - 1])}, by about one gradient a step, while the loss was "
        "normal.",
        f"largest increase in one step: {shown(float(np.abs(np.diff(grown)).max()))}",
        since=int(norm.steps[end - len(grown)]),
        certainty="possible",
    )


def _sum_like(norms: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The last norms, if they grow as a sum of gradients does; None: they do not."""
    low = len(norms) - 4 * FEWEST_SUMMED
    usual = norms[max(0, low - USUAL) : low]
    if len(usual) < FEWEST_SUMMED:
        return None
    middle, highest = float(np.median(usual)), float(usual.max())
    within = np.flatnonzero(norms[low:] <= middle)
    if not len(within):
        return None
    grown = norms[low + int(within[-1]) :]
    if len(grown) < FEWEST_SUMMED or not np.isfinite(grown).all() or float(grown[-1]) < GROWN * middle:
        return None
    changes = np.diff(grown)
    ordinary = losses[max(0, low - USUAL) : low]
    calm = float(np.median(losses[-len(grown) :])) <= float(ordinary.max())
    count = np.arange(1, len(grown) + 1)
    logs = np.log(grown)
    as_a_sum, as_a_power = np.corrcoef(np.log(count), logs)[0, 1], np.corrcoef(count, logs)[0, 1]
    even = float(np.abs(changes).max()) <= 1.5 * highest and float((changes > 0).mean()) >= MOSTLY
    return grown if calm and even and as_a_sum > as_a_power else None


EXPLODED = 5.0
"""A gradient norm of so many times its usual one."""
DEVIATIONS = 6.0
"""And so many deviations of its own noise above it."""
VANISHED = 1e-5
"""A gradient norm of the whole model below this moves nothing."""
LOST_TO_ROUNDING = 1e-10
"""A gradient norm of a layer below this moves none of its weights: with Adam too it is below the usual epsilon."""
OF_ITS_START = 0.1
"""Or below this share of what it was at the start, while the loss stands still."""
FEWEST = 16
"""With fewer gradient norms before, nobody knows what is usual."""


def explosion_check(around: EpisodeContext) -> CheckResult:
    """Whether the gradients exploded before the loss did."""
    if around.norm is None:
        return not_seen("gradient norm: not logged")
    before = norms_before(around)
    if len(before) < FEWEST:
        there = counted(len(before), "value")
        return not_seen(f"gradient norm: {there} before it, {FEWEST} needed for a baseline")
    recent, earlier = split(before)
    usual, spread = usual_of(earlier)
    highest = float(recent.max())
    if highest > EXPLODED * usual and np.log(highest) > np.log(usual) + DEVIATIONS * spread:
        layer = exploding_layer(around)
        return is_it(
            "gradient_explosion",
            f"The gradients exploded first: their norm reached {shown(highest)} within the {len(recent)} points "
            f"before (baseline {shown(usual)}).",
            f"gradient norm x {highest / usual:.3g}",
            "" if layer is None else layer.sentence,
            since=_since_exploded(around.norm, around.episode.start, EXPLODED * usual),
            # A sum that nobody clears looks like this in the end: what made it comes first.
            certainty="likely" if accumulation_check(around).cause is None else "possible",
            place="" if layer is None else layer.place,
        )
    lowest = float(recent.min())
    return is_not(f"gradient explosion: norm {shown(lowest)} to {shown(highest)} just before (baseline {shown(usual)})")


def growth_check(around: EpisodeContext) -> CheckResult:
    """Whether the gradient norm grew long before, too gradually to stand out just before."""
    grown = _growth(around)
    if grown is None:
        return is_not("slow growth of the gradient norm") if around.norm else not_seen("gradient norm: not logged")
    what = "" if around.episode.kind == "gradient_explosion" else f"; the loss followed at step {around.episode.start}"
    return is_it(
        "gradient_explosion",
        f"The gradient norm kept growing from step {grown.start} on, from {shown(grown.evidence['level'])} to "
        f"{shown(grown.evidence['last'])}{what}.",
        f"gradient norm x {grown.evidence['grown']:.3g}",
        since=grown.start,
        certainty="possible",
    )


def _growth(around: EpisodeContext) -> Episode | None:
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
        lost_at = said[0].evidence.get("grad_norm", VANISHED)
        certainty = "likely" if 0 < lost_at < LOST_TO_ROUNDING else "possible"
        return is_it("vanishing_gradients", what, *evidence, since=since, certainty=certainty, place=place)
    if around.norm is None:
        return not_seen("gradient norm: not logged")
    values = around.norm.values[around.norm.finite]
    if len(values) < FEWEST:
        return not_seen(f"gradient norm: {counted(len(values), 'value')}, {FEWEST} are needed")
    tenth = max(3, len(values) // 10)
    first, last = float(np.median(values[:tenth])), float(np.median(values[-tenth:]))
    if last < VANISHED or last < OF_ITS_START * first:
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


def _since_exploded(norm: Curve, start: int, limit: float) -> int:
    """The first of the points just before at which the norm stood above a limit."""
    near = np.flatnonzero((norm.steps < start) & (norm.values > 0) & norm.finite)[-RECENT:]
    return int(norm.steps[near[norm.values[near] > limit][0]])


def _since_left(norm: Curve, first: float) -> int:
    """The first point after the last at which the norm was half of what it was at first."""
    steps, values = norm.steps[norm.finite], norm.values[norm.finite]
    high = np.flatnonzero(values >= first / 2)
    return int(steps[min(int(high[-1]) + 1, len(steps) - 1)]) if len(high) and first > 0 else int(steps[0])


def _of_the_whole(around: EpisodeContext) -> tuple[str, ...]:
    whole = next((each for each in around.of("grad_norm") if not each.place), None)
    values = np.zeros(0) if whole is None else around.before(whole)
    return (f"norm of all gradients: {shown(float(values[-1]))}",) if len(values) else ()


CAUSES = (
    CauseDocumentation(
        "gradient_explosion",
        "The gradients exploded before the loss did.",
        "The gradient norm just before was 5 times its baseline and 6σ above it, or kept growing.",
        "Large gradients that follow a rising loss; logging every step shows the order.",
        GradientExplosion.remedies,
    ),
    CauseDocumentation(
        "vanishing_gradients",
        "The gradients were too small to learn from.",
        "The gradient norm fell below 1e-5, or to 10 % of its start, while the loss did not fall; or layers before one "
        "of them get almost no gradient.",
        "A training that has converged has small gradients, too.",
        GradientVanishing.remedies,
    ),
    CauseDocumentation(
        "gradients_not_cleared",
        "Gradients accumulate because zero_grad() is missing.",
        "While it trained, the gradients of one step were seen to be there when the next began; or the gradient norm "
        "grew steadily to 2.5 times its baseline, by about one gradient per step, while the loss was normal.",
        "A slow growth of the gradients themselves.",
        ("Call optimizer.zero_grad() in every step, or after each accumulation.",),
        helped_by_smaller_updates=False,
        phrase="missing zero_grad()",
    ),
)
_KEPT = frozenset({"gradients_not_cleared"})
CHECKS = (
    Check(
        kept_gradients_check,
        {
            Symptom.NON_FINITE: 45,
            Symptom.RISING: 15,
            Symptom.STUCK: 15,
            Symptom.LARGE_UPDATES: 15,
            Symptom.INSIDE: 45,
        },
        _KEPT,
    ),
    Check(accumulation_check, {Symptom.RISING: 40}, _KEPT),
    Check(explosion_check, {Symptom.NON_FINITE: 60, Symptom.RISING: 50}, frozenset({"gradient_explosion"})),
    Check(growth_check, {Symptom.RISING: 80}, frozenset({"gradient_explosion"})),
    Check(
        vanishing_check,
        {Symptom.STUCK: 20, Symptom.VANISHING: 20, Symptom.DEAD_LAYER: 30, Symptom.REPEATED_DATA: 20},
        frozenset({"vanishing_gradients"}),
    ),
)
