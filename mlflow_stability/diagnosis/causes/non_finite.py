"""Find the causes of non-finite values: the origin of the first one, and the loss scale.

What the batch and the optimizer state held before the step is observed directly. An operation that overflows mostly has
a cause of its own, and checks for that come first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import (
    CauseType,
    Check,
    CheckResult,
    cause_found,
    causes,
    not_checked,
    ruled_out,
)
from mlflow_stability.diagnosis.causes.context import EpisodeContext, norms_before, usual_norm, value_at
from mlflow_stability.diagnosis.causes.one_batch import abnormal_before, sudden_check
from mlflow_stability.diagnosis.recorded_settings import in_half_precision
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.optimizer.loss_scaling import LossScaleCollapse
from mlflow_stability.kinds.reported.broken_steps import BrokenBatchFacts, NanOriginFacts, NanSource, Rerun
from mlflow_stability.vocabulary.result import Action, Cause, Finding, Remedy

NAN_ORIGIN = "nan_origin"
BROKEN_BATCH = "broken_batch"


@dataclass(frozen=True, slots=True)
class OriginLimits:
    near: int = 2  # maximum number of steps between a break and a finding of the same
    absurd: float = 1e15  # magnitude that one step of a normal training does not reach
    modest: float = 10.0  # magnitude that overflows in no type: an infinity from it comes from an undefined operation


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    cuts: int = 3  # minimum number of reductions of the loss scale just before
    raised: float = 8.0  # minimum ratio of a scale to its lowest just before; doubling every 2000 steps is usual
    in_a_row: int = 3  # number of broken steps in a row that do not depend on their batches
    usual_gradient: float = 3.0  # maximum ratio of a gradient norm of usual size to its baseline


ORIGIN_LIMITS, LIMITS = OriginLimits(), ScaleLimits()
FP16_LARGEST = 65504.0  # the largest number of fp16
TOO_LARGE_FOR_FP16 = (Remedy(Action.STANDARDISE_INPUTS), Remedy(Action.TRAIN_IN_BF16))
AGAINST_LOGARITHM = (Remedy(Action.KEEP_LOGARITHM_ABOVE_ZERO), Remedy(Action.USE_LOG_SOFTMAX))
CAUSE_BY_SOURCE = {
    NanSource.WEIGHT: "damaged_weights",
    NanSource.BUFFER: "damaged_weights",
    NanSource.BACKWARD: "gradient_non_finite",
    NanSource.ELSEWHERE: "tensor_from_outside",
}
"""The cause by source, where the source alone decides."""


def origin_near(context: EpisodeContext) -> Finding | None:
    """Return the event with the origin of the first non-finite value; None if it was not looked for."""
    events = (event for event in context.events_of(NAN_ORIGIN) if isinstance(event.facts, NanOriginFacts))
    return next((event for event in events if is_near(context, event)), None)


def origin_of(finding: Finding) -> NanOriginFacts:
    facts = finding.facts
    return facts if isinstance(facts, NanOriginFacts) else NanOriginFacts(NanSource.ELSEWHERE, text=finding.message)


def is_near(context: EpisodeContext, event: Finding) -> bool:
    return context.episode.start <= event.step <= context.episode.start + ORIGIN_LIMITS.near


def input_range(origin: NanOriginFacts) -> str:
    """Return the range of the operation's inputs in words; empty if unknown."""
    return "" if origin.value_range is None else "from {:.3g} to {:.3g}".format(*origin.value_range)


def overflowed(origin: NanOriginFacts) -> bool:
    """Return whether finite inputs exceeded the range of their type; old recordings do not say so, their numbers do."""
    if origin.overflowed is not None:
        return origin.overflowed
    if origin.source is not NanSource.FORWARD:
        return False
    largest = ORIGIN_LIMITS.modest if origin.value_range is None else max(map(abs, origin.value_range))
    infinite = origin.output is not None and origin.output.inf > 0 and origin.output.nan == 0
    return largest >= (ORIGIN_LIMITS.modest if infinite else ORIGIN_LIMITS.absurd)


def origin_check(context: EpisodeContext) -> CheckResult:
    event = origin_near(context)
    if event is None:
        return _nan_in_batch(context) or not_checked("origin of the NaN: the non-finite step was not run again")
    result = _result_of_origin(context, event)
    if result.cause is None:
        return result
    cause = result.cause
    if cause.since is not None:
        # The first step of a training, or of several broken steps, is mostly run again one or two steps later.
        cause = replace(cause, since=min(cause.since, context.episode.start))
    exact = origin_of(event).is_exact and cause.name != "damaged_weights"
    cause = replace(cause, remedies=event.remedies) if exact else cause
    if cause.name == "loss_function":
        cause = _with_logarithm(context, cause)
    elif cause.name == "bad_batch" and infinite_in_fp16(origin_of(event)):
        cause = replace(
            cause,
            evidence=(*cause.evidence, f"Possible overflow: in fp16, numbers above {FP16_LARGEST:.0f} are infinite"),
            remedies=(*cause.remedies, *TOO_LARGE_FOR_FP16),
        )
    return CheckResult(cause)


def infinite_in_fp16(origin: NanOriginFacts) -> bool:
    """Return whether the batch held infinities in fp16, which a conversion of larger numbers makes, and no NaN."""
    held = origin.output if origin.source is NanSource.INPUT else None
    return held is not None and held.dtype == "float16" and held.inf > 0 and not held.nan


def logarithm_of_zero(context: EpisodeContext) -> str:
    """Return a sentence on a loss that is minus infinity and was not so large before that it overflowed; else empty."""
    loss, start = context.loss, context.episode.start
    first = None if loss is None else next(iter(np.flatnonzero(~loss.finite & (loss.steps >= start))), None)
    if loss is None or first is None or loss.values[first] != -np.inf:
        return ""
    before = context.before(loss, 1)
    largest = FP16_LARGEST**0.5 if in_half_precision(context.history) else ORIGIN_LIMITS.absurd
    if len(before) and abs(float(before[-1])) > largest:
        return ""
    at = f"{context.unit} {int(loss.steps[first])}"
    return f"{loss.name} is minus infinity at {at}, probably from the logarithm of zero: log(0) = -inf."


def _with_logarithm(context: EpisodeContext, cause: Cause) -> Cause:
    """Add the logarithm of zero, and what to do against it, where the loss is minus infinity."""
    sentence = logarithm_of_zero(context)
    if not sentence:
        return cause
    remedies = (*AGAINST_LOGARITHM, *(cause.remedies or causes()[cause.name].remedies))
    return replace(cause, evidence=(*cause.evidence, sentence), remedies=tuple(dict.fromkeys(remedies)))


def _nan_in_batch(context: EpisodeContext) -> CheckResult | None:
    """Return the NaN in the inputs of a broken step whose rerun decided nothing; infinities may be masks."""
    event = next((event for event in context.events_of(BROKEN_BATCH) if event.step == context.episode.start), None)
    facts = _batch_undecided(event)
    if event is None or facts is None or facts.changed_in_place:
        return None
    # Recordings of earlier versions have no type, and count infinities as well.
    broken = "; ".join(f"{tensor.name} {tensor.words}" for tensor in facts.tensors if tensor.dtype and tensor.nan)
    if not broken:
        return None
    return cause_found(
        "bad_batch",
        f"The batch of {context.unit} {event.step} held NaN before the model used it: {broken}.",
        since=event.step,
        certainty="certain",
        repeats=((BROKEN_BATCH, event.step),),
    )


def _batch_undecided(event: Finding | None) -> BrokenBatchFacts | None:
    """Return the facts of a broken batch if running it again decided nothing, or was not possible."""
    facts = None if event is None else event.facts
    if isinstance(facts, BrokenBatchFacts) and facts.rerun in (None, Rerun.CANNOT_TELL):
        return facts
    return None


OPTIMIZER_STATE_REMEDIES = (Remedy(Action.RESTART_BEFORE_STEP), Remedy(Action.LOWER_BETA2_OR_CLIP))


def _result_of_origin(context: EpisodeContext, event: Finding) -> CheckResult:
    facts, since, repeats = origin_of(event), event.step, ((NAN_ORIGIN, event.step),)
    inputs = f"inputs range {input_range(facts)}" if facts.value_range is not None else ""
    remedies: tuple[Remedy, ...] = ()
    was_normal = not abnormal_before(context)
    largest = None if facts.value_range is None else max(map(abs, facts.value_range))
    name, certainty, place = CAUSE_BY_SOURCE.get(facts.source, ""), "likely", event.place
    if facts.source is NanSource.INPUT:
        name, certainty, place = "bad_batch", "certain", ""
    elif facts.source is NanSource.OPTIMIZER:
        name, certainty = "optimizer_state", "certain" if was_normal else "likely"
        if facts.output is not None and facts.output.dtype == "float16":
            inputs = "the weights are float16, in which squares of small gradients and an eps below 3e-8 are zero"
            remedies = (Remedy(Action.KEEP_WEIGHTS_IN_FLOAT32), *OPTIMIZER_STATE_REMEDIES)
    elif facts.source is NanSource.LOSS:
        loss = None if context.loss is None else value_at(context.loss, event.step)
        # With a finite loss, the backward pass broke: a derivative, a hook, a loss scale.
        name, place = "gradient_non_finite" if loss is not None and isfinite(loss) else "loss_function", ""
        if name == "loss_function" and largest is not None and largest <= ORIGIN_LIMITS.modest:
            certainty = "certain"  # smaller updates would not have kept such outputs any smaller
    elif not name:
        batch = _moderate_batch(context)
        if was_normal and largest is not None and largest > ORIGIN_LIMITS.absurd and batch:
            return cause_found(
                "damaged_weights",
                f"The weights were corrupted at {context.unit} {event.step}: values up to {largest:.3g} reached "
                f"{event.place or 'the model'} from {batch}; the step before was normal. Check what writes to the "
                "weights, and the device memory.",
                facts.statement,
                since=since,
                place=place,
                repeats=repeats,
            )
        name = "overflow" if overflowed(facts) else "invalid_operation"
    return cause_found(
        *(name, facts.statement, inputs),
        since=since,
        certainty=certainty,
        place=place,
        remedies=remedies,
        repeats=repeats,
    )


def _moderate_batch(context: EpisodeContext) -> str:
    """Return a phrase for a batch whose values are known to be moderate; empty if they may not be."""
    if context.history.params.get("stability.batch", "").startswith(("int", "uint", "bool")):
        return "a batch of integers"
    for event in context.events_of(BROKEN_BATCH):
        tensors = event.facts.tensors if isinstance(event.facts, BrokenBatchFacts) else ()
        ends = [abs(end) for tensor in tensors for end in (tensor.least, tensor.greatest) if end is not None]
        if is_near(context, event) and ends and max(ends) < ORIGIN_LIMITS.absurd:
            return f"a batch with values up to {max(ends):.3g}"
    return ""


def one_step_check(context: EpisodeContext) -> CheckResult:
    """Check whether one batch of a normal training broke the step, and which operation failed on it."""
    batch, event = sudden_check(context), origin_near(context)
    if event is None:
        return batch if batch.cause is None else CheckResult(_with_logarithm(context, batch.cause))
    if batch.cause is None:  # the origin is known, but not whether another batch would have met it
        return not_checked(batch.ruled_out or batch.not_checked)
    origin = origin_check(context).cause
    if origin is None or origin.name in ("bad_batch", "damaged_weights", "optimizer_state"):
        return batch
    if origin.name == "overflow":  # the large inputs of the operation may be those of the batch
        cause = replace(
            batch.cause,
            evidence=(*batch.cause.evidence, origin_of(event).statement),
            place=origin.place,
            remedies=origin.remedies,
            repeats=(*batch.cause.repeats, (NAN_ORIGIN, event.step)),
        )
        return CheckResult(cause)
    return CheckResult(replace(origin, evidence=(*origin.evidence, *batch.cause.evidence)))


def from_the_start_check(context: EpisodeContext) -> CheckResult:
    """Check whether the first step was non-finite before any optimizer step."""
    step = context.episode.start
    if not context.before_any_update:
        return CheckResult()
    batches = [event for event in context.events_of(BROKEN_BATCH) if is_near(context, event)]
    return cause_found(
        "broken_from_start",
        f"Not finite at {context.unit} {step}, before any optimizer step was taken: the batch, the loss function or "
        "the initial weights caused it. Learning rate and optimizer had no part in it.",
        *(event.message for event in batches),
        since=step,
        repeats=tuple((BROKEN_BATCH, event.step) for event in batches),
    )


def hardware_check(context: EpisodeContext) -> CheckResult:
    """Check whether the same batch was finite the second time."""
    event = next((event for event in context.events_of(BROKEN_BATCH) if is_near(context, event)), None)
    rerun = event.facts.rerun if event is not None and isinstance(event.facts, BrokenBatchFacts) else None
    if event is None or rerun not in (Rerun.HARDWARE, Rerun.DATA_OR_NUMERICS):
        undecided = _batch_undecided(event)
        reason = "" if undecided is None else undecided.rerun_words.strip().rstrip(".")
        return not_checked(f"hardware: {reason[:1].lower()}{reason[1:] or 'the batch was not run again'}")
    if rerun is Rerun.DATA_OR_NUMERICS:
        return ruled_out("hardware: the same batch was non-finite again when run a second time")
    return cause_found(
        "hardware",
        f"The batch of {context.unit} {event.step} was non-finite once and finite when run again with the same "
        "weights and random numbers: a hardware fault, or a non-deterministic operation.",
        event.message,
        since=event.step,
        repeats=((BROKEN_BATCH, event.step),),
    )


def gradient_first_check(context: EpisodeContext) -> CheckResult:
    """Check whether the gradient norm was non-finite while the loss was still finite."""
    norm, loss = context.norm, context.loss
    if norm is None or loss is None:
        return not_checked("gradient norm: not logged" if norm is None else "loss: not logged")
    first, loss_step = _first_broken_gradient(context)
    if first is None:
        return ruled_out("non-finite gradient: its norm was finite as long as the loss")
    finite = np.flatnonzero(np.isfinite(norm.values[norm.steps >= first]))
    broken = int(finite[0]) if len(finite) else int((norm.steps >= first).sum())
    until = f" up to {context.unit} {loss_step}" if loss_step < int(loss.steps[-1]) else ""
    several = LIMITS.in_a_row <= broken < loss_step - first
    return cause_found(
        "gradient_non_finite",
        f"The gradient was non-finite first: {norm.name} at {context.unit} {first}, while the loss was still "
        f"finite{until}.",
        "the forward pass was finite; the backward pass was not",
        f"{broken} {context.unit}s in a row, with different batches" if several else "",
        since=first,
    )


def _first_broken_gradient(context: EpisodeContext) -> tuple[int | None, int]:
    """Return the first step with a non-finite gradient before the loss broke, and the step at which that broke."""
    facts, norm, loss = context.episode.facts_as(NonFiniteFacts), context.norm, context.loss
    start = context.episode.start
    if facts is not None and facts.loss_step is not None:
        return start, facts.loss_step
    if norm is None or loss is None:
        return None, 0
    broken_norms = norm.steps[(norm.steps >= start) & ~norm.finite]
    broken_losses = loss.steps[(loss.steps >= start) & ~loss.finite]
    if not len(broken_norms) or broken_norms[0] > max(context.episode.end, start):
        return None, 0
    if len(broken_losses) and broken_losses[0] <= broken_norms[0]:
        return None, 0
    return int(broken_norms[0]), int(broken_losses[0] if len(broken_losses) else loss.steps[-1])


def loss_scale_check(context: EpisodeContext) -> CheckResult:
    """Check whether the loss scale was falling again and again, or had been raised too far."""
    if context.scale is None:
        return not_checked("loss scale: not logged")
    before = context.before(context.scale)
    before = before[before > 0]
    if len(before) < 2:
        return not_checked("loss scale: one value before it") if len(before) else ruled_out("loss scale: not in use")
    raised = _raised_scale_check(context, before)
    if raised is not None:
        return raised
    cuts = int((np.diff(before) < 0).sum())
    if cuts >= LIMITS.cuts and not (np.diff(before) > 0).any():
        return cause_found(
            "fp16_scale",
            f"fp16 gradient overflow: the loss scale was lowered {cuts} times without growing, from {before[0]:.3g} "
            f"to {before[-1]:.3g}.",
            f"loss scale {before[-1]:.3g} at the step before",
            since=context.first_before(context.scale),
        )
    return ruled_out(f"loss scale: {before[-1]:.3g}, lowered {cuts} times in the {len(before)} points before")


def _raised_scale_check(context: EpisodeContext, before: NDArray[np.float64]) -> CheckResult | None:
    """Check whether the scale was raised until gradients of usual size overflowed."""
    if context.scale is None:
        return None
    top, lowest = float(before.max()), float(before[: int(np.argmax(before)) + 1].min())
    at_start = context.scale.values[context.scale.steps >= context.episode.start][:1]
    top = max([top, *at_start[np.isfinite(at_start)].tolist()])
    norms, usual = norms_before(context), usual_norm(context)
    if top < LIMITS.raised * lowest or len(norms) < 2 or usual is None or norms[-1] > LIMITS.usual_gradient * usual:
        return None
    return cause_found(
        "fp16_scale",
        f"fp16 gradient overflow: the loss scale rose from {lowest:.3g} to {top:.3g} within {len(before)} "
        "points, while gradients were of usual size.",
        f"gradient norm {norms[-1]:.3g} in the last finite step (baseline {usual:.3g})",
        f"loss scale x {top / lowest:.3g}",
        since=context.first_before(context.scale),
    )


CAUSES = (
    CauseType(
        "loss_function",
        "The loss function produced the first non-finite value.",
        "The non-finite step was run again, and the inputs of the loss were finite; certain where none exceeded "
        "{ORIGIN_LIMITS.modest}.",
        "Labels or logits that are invalid for any loss function.",
        (Remedy(Action.CHECK_LOSS_FUNCTION), Remedy(Action.CHECK_LOSS_TERMS_OF_BATCH)),
        helped_by_smaller_updates=False,
    ),
    CauseType(
        "invalid_operation",
        "An operation of the model is undefined for its inputs.",
        "The non-finite step was run again, and the inputs of the operation were finite and of moderate size.",
        "Inputs that are wrong for an earlier reason.",
        (Remedy(Action.CLAMP_INPUTS),),
        helped_by_smaller_updates=False,
    ),
    CauseType(
        "tensor_from_outside",
        "A tensor of the script outside the model was non-finite.",
        "The non-finite step was run again, and the value came from neither an input nor a weight nor a buffer.",
        "A tensor that the script computes from the batch.",
        (Remedy(Action.INSPECT_TENSOR_OF_SCRIPT),),
        helped_by_smaller_updates=False,
        phrase="non-finite tensor outside the model",
    ),
    CauseType(
        "optimizer_state",
        "The optimizer state was non-finite or extremely large.",
        "The weights became non-finite in an update with finite gradients.",
        "Weights that other code wrote to.",
        OPTIMIZER_STATE_REMEDIES,
    ),
    CauseType(
        "broken_from_start",
        "The first forward or backward pass was non-finite, before any optimizer step.",
        "Loss or gradient norm of the first step of the training is NaN or infinite. Where the step was run again and "
        "its operation was found, that is named instead.",
        "A training that continues from weights that were broken before.",
        (Remedy(Action.CHECK_FIRST_TARGETS), Remedy(Action.CHECK_OPERATIONS), Remedy(Action.CHECK_INPUTS_AND_WEIGHTS)),
        helped_by_smaller_updates=False,
        phrase="non-finite from the start",
    ),
    CauseType(
        "hardware",
        "The device gave a different result the second time.",
        "The non-finite batch was run again with the same weights and random numbers, and was finite.",
        "A non-deterministic operation; a model with state of its own between calls.",
        (Remedy(Action.TEST_DEVICE),),
        helped_by_smaller_updates=False,
    ),
    CauseType(
        "fp16_scale",
        "Scaled gradients overflowed in fp16 (above 65504).",
        "The loss scale was lowered three times without growing, or rose {LIMITS.raised}-fold until gradients of "
        "usual size overflowed. Never named where fp16 is not used.",
        "A scaler that searches for its first scale.",
        LossScaleCollapse.remedies,
        excluded_by=lambda used: "fp16 gradient overflow: fp16 is not used" if used.half_precision is False else "",
        phrase="fp16 gradient overflow",
    ),
    CauseType(
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
    Check(origin_check, {Symptom.NON_FINITE: 90}),
    Check(one_step_check, {Symptom.NON_FINITE: 40}, frozenset({"bad_batch"})),
    Check(hardware_check, {Symptom.NON_FINITE: 30}, frozenset({"hardware"})),
    Check(from_the_start_check, {Symptom.NON_FINITE: 125}, frozenset({"broken_from_start"})),
    Check(gradient_first_check, {Symptom.NON_FINITE: 100}, frozenset({"gradient_non_finite"})),
    Check(loss_scale_check, {Symptom.NON_FINITE: 10}, frozenset({"fp16_scale"})),
)
