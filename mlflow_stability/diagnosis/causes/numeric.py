"""Looks for the cause in the numbers: an overflow before the NaN, a loss scale that collapsed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import EpisodeContext, norms_before, shown, usual_norm
from mlflow_stability.diagnosis.causes.nan_origin import origin_near, origin_of, overflowed, range_of
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.optimizer.loss_scale_collapse import LossScaleCollapse
from mlflow_stability.kinds.reported.nan_origin import NanSource
from mlflow_stability.vocabulary.result import Action, Finding, Remedy


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    """Thresholds of the causes in the loss scale."""

    cuts: int = 3
    """Minimum number of reductions of the loss scale just before."""
    raised: float = 8.0
    """Minimum factor by which a scale rose within the points just before; doubling every 2000 steps is usual."""
    in_a_row: int = 3
    """Number of broken steps in a row that do not depend on their batches."""


LIMITS = ScaleLimits()


def overflow_check(around: EpisodeContext) -> CheckResult:
    """Whether something became infinite before anything became NaN."""
    origin = origin_near(around)
    if origin is not None:
        return _where_it_was_born(origin)
    start = around.episode.start
    curves = [curve for curve in (around.loss, around.norm) if curve is not None]
    first: dict[str, tuple[int, str]] = {}
    for curve in curves:
        for word, bad in (("inf", np.isinf(curve.values)), ("nan", np.isnan(curve.values))):
            near = np.flatnonzero(bad & (curve.steps <= around.episode.end))
            if len(near) and (word not in first or int(curve.steps[near[0]]) < first[word][0]):
                first[word] = int(curve.steps[near[0]]), curve.name
    if "inf" in first and ("nan" not in first or first["inf"][0] <= first["nan"][0]):
        step, name = first["inf"]
        said = f"Overflow: {name} was infinite at {around.unit} {step}"
        if "nan" not in first:
            return is_it("overflow", f"{said}.", "nothing was NaN before it", since=step)
        later, where = first["nan"]
        what = f"{said}, before anything was NaN."
        return is_it("overflow", what, f"NaN followed at {around.unit} {later} in {where}", since=step)
    named = " and ".join(curve.name for curve in curves)
    return is_not(
        f"overflow: no infinity in {named or 'the logged values'} before the first NaN at {around.unit} {start}"
    )


def _where_it_was_born(origin: Finding) -> CheckResult:
    """What the operation that made the first number that is not finite says of it."""
    facts = origin_of(origin)
    if overflowed(facts):
        return not_seen("overflow: see the origin of the NaN")
    ranges = range_of(facts)
    if facts.source is NanSource.INPUT:
        return is_not("overflow: the batch itself was non-finite")
    if facts.source in (NanSource.FORWARD, NanSource.BACKWARD) and ranges:
        return is_not(f"overflow: inputs of the operation range {ranges}, within its type")
    return not_seen("overflow: inputs of the operation are unknown")


def gradient_first_check(around: EpisodeContext) -> CheckResult:
    """Whether the gradient norm was not finite while the loss still was."""
    if around.norm is None or around.loss is None:
        return not_seen("gradient norm: not logged" if around.norm is None else "loss: not logged")
    first, after = _first_broken(around)
    if first is None or after is None:
        return is_not("non-finite gradient: its norm was finite as long as the loss")
    row = _row_of_broken(around.norm, first)
    whole = f" up to {around.unit} {after}" if after < int(around.loss.steps[-1]) else ""
    every = f"{row} {around.unit}s in a row, with different batches" if LIMITS.in_a_row <= row < after - first else ""
    return is_it(
        "gradient_non_finite",
        f"The gradient was non-finite first: {around.norm.name} at {around.unit} {first}, while the loss was still "
        f"finite{whole}.",
        "the forward pass was finite; the backward pass was not",
        every,
        since=first,
    )


def _first_broken(around: EpisodeContext) -> tuple[int | None, int | None]:
    """The first step whose gradient was not finite, and the last before the loss was not either; None: neither."""
    facts = around.episode.known(NonFiniteFacts)
    if facts is not None and facts.loss_step is not None:
        return around.episode.start, facts.loss_step
    norm, loss = around.norm, around.loss
    if norm is None or loss is None:
        return None, None
    since = norm.steps >= around.episode.start
    broken = norm.steps[since & ~norm.finite]
    if not len(broken) or int(broken[0]) > max(around.episode.end, around.episode.start):
        return None, None
    first = int(broken[0])
    at = loss.steps[~loss.finite & (loss.steps >= around.episode.start)]
    if len(at) and int(at[0]) <= first:
        return None, None
    return first, int(at[0]) if len(at) else int(loss.steps[-1])


def _row_of_broken(norm: Curve, first: int) -> int:
    values = norm.values[int(np.searchsorted(norm.steps, first)) :]
    whole = np.flatnonzero(np.isfinite(values))
    return int(whole[0]) if len(whole) else len(values)


def loss_scale_check(around: EpisodeContext) -> CheckResult:
    """Whether the loss scale was collapsing, as it does when gradients overflow in half precision again and again."""
    if around.scale is None:
        return not_seen("loss scale: not logged")
    before = around.before(around.scale)
    before = before[before > 0]
    raised = _raised(around, before)
    if raised is not None:
        return raised
    if len(before) < 2:
        return is_not("loss scale: not in use") if len(before) == 0 else not_seen("loss scale: one value before it")
    cuts = int((np.diff(before) < 0).sum())
    grown = bool((np.diff(before) > 0).any())
    if cuts >= LIMITS.cuts and not grown:
        return is_it(
            "fp16_scale",
            f"fp16 gradient overflow: the loss scale was lowered {cuts} times without growing, from "
            f"{shown(float(before[0]))} to {shown(float(before[-1]))}.",
            f"loss scale {shown(float(before[-1]))} at the step before",
            since=around.first_before(around.scale),
        )
    return is_not(f"loss scale: {shown(float(before[-1]))}, lowered {cuts} times in the {len(before)} points before")


def _raised(around: EpisodeContext, before: NDArray[np.float64]) -> CheckResult | None:
    """Whether the scale was raised again and again until gradients that were no larger than usual overflowed."""
    if around.scale is None or len(before) < 2:
        return None
    top, lowest = float(before.max()), float(before[: int(np.argmax(before)) + 1].min())
    place = int(np.searchsorted(around.scale.steps, around.episode.start))
    then = around.scale.values[place : place + LIMITS.in_a_row]
    top = max(top, float(then[0])) if len(then) and np.isfinite(then[0]) else top
    if top < LIMITS.raised * lowest:
        return None
    norms, usual = norms_before(around), usual_norm(around)
    if len(norms) < 2 or usual is None:
        return None
    last = float(norms[-1])
    if last > 3 * usual:
        return None
    return is_it(
        "fp16_scale",
        f"fp16 gradient overflow: the loss scale rose from {shown(lowest)} to {shown(top)} within {len(before)} "
        "points, while gradients were of usual size.",
        f"gradient norm {shown(last)} in the last finite step (baseline {shown(usual)})",
        f"loss scale x {top / lowest:.3g}",
        since=around.first_before(around.scale),
    )


CAUSES = (
    CauseDocumentation(
        "overflow",
        "Values exceeded the range of their number format.",
        "Loss or gradient norm was infinite before the first NaN, or the operation that overflowed had large finite "
        "inputs.",
        "A division by zero is infinite as well.",
        (Remedy(Action.TRAIN_IN_BF16), Remedy(Action.FIND_OVERFLOWING_MODULE)),
    ),
    CauseDocumentation(
        "fp16_scale",
        "Scaled gradients overflowed in fp16 (above 65504).",
        "The loss scale was lowered three times without growing, or rose {LIMITS.raised}-fold until gradients of "
        "usual size overflowed. Never named where fp16 is not used.",
        "A scaler that searches for its first scale.",
        LossScaleCollapse.remedies,
        excluded_by=lambda known: "fp16 gradient overflow: fp16 is not used" if known.half_precision is False else "",
        phrase="fp16 gradient overflow",
    ),
    CauseDocumentation(
        "gradient_non_finite",
        "The backward pass produced non-finite gradients while the loss was finite.",
        "The gradient norm was non-finite at a step with a finite loss; or the step was run again, and the backward "
        "pass made the first non-finite value.",
        "A norm that overflows although each gradient is finite.",
        (Remedy(Action.KEEP_INPUTS_FROM_ZERO), Remedy(Action.LOWER_LOSS_SCALE_OR_BF16)),
        helped_by_smaller_updates=False,
        phrase="non-finite gradient",
    ),
)
CHECKS = (
    Check(overflow_check, {Symptom.NON_FINITE: 110}, frozenset({"fp16_scale", "overflow"})),
    Check(gradient_first_check, {Symptom.NON_FINITE: 100}, frozenset({"gradient_non_finite"})),
    Check(loss_scale_check, {Symptom.NON_FINITE: 10}, frozenset({"fp16_scale"})),
)
