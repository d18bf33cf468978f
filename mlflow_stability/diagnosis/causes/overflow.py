"""Find values that exceeded the range of their number format, and infinities that come from the logarithm of zero."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isinf

import numpy as np

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import CauseType, Check, CheckResult, cause_found, not_checked, ruled_out
from mlflow_stability.diagnosis.causes.context import EpisodeContext, value_at
from mlflow_stability.diagnosis.causes.non_finite import (
    AGAINST_LOGARITHM,
    FP16_LARGEST,
    TOO_LARGE_FOR_FP16,
    infinite_in_fp16,
    input_range,
    logarithm_of_zero,
    origin_near,
    origin_of,
    overflowed,
)
from mlflow_stability.diagnosis.recorded_settings import in_half_precision
from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts, NanSource
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class LargeInput:
    """An input of the first layer that is larger than the largest number of fp16."""

    step: int
    module: str
    size: float  # its magnitude
    was_finite: bool  # whether the loss was finite nevertheless: the first layer does not compute in fp16

    @property
    def words(self) -> str:
        """``the inputs of module 0 reach 5.41e+05``."""
        return f"the inputs of module {self.module} {'are infinite' if isinf(self.size) else f'reach {self.size:.3g}'}"


def large_inputs(context: EpisodeContext) -> list[LargeInput]:
    """Return the recorded inputs that fp16 cannot hold, if fp16 is used, earliest first."""
    if not in_half_precision(context.history):
        return []
    inputs = []
    for metric in (*context.history.of("input_low"), *context.history.of("input_high")):
        for step, value in zip(metric.series.steps.tolist(), metric.series.values.tolist(), strict=True):
            if abs(value) > FP16_LARGEST and step in context.span:
                loss = None if context.loss is None else value_at(context.loss, step)
                was_finite = step < context.episode.start if loss is None else isfinite(loss)
                inputs.append(LargeInput(step, metric.meaning.place, abs(value), was_finite))
    return sorted(inputs, key=lambda large: (large.step, -large.size))


def large_input_check(context: EpisodeContext) -> CheckResult:
    """Check whether the inputs of the first layer were too large for fp16; the origin of a NaN says it better."""
    inputs = large_inputs(context)
    if not inputs or origin_near(context) is not None or any(large.was_finite for large in inputs):
        return CheckResult()
    first = inputs[0]
    return cause_found(
        "overflow",
        f"Overflow: {first.words} at {context.unit} {first.step}; the largest number of fp16 is {FP16_LARGEST:.0f}.",
        since=min(first.step, context.episode.start),
        remedies=TOO_LARGE_FOR_FP16,
    )


def overflow_check(context: EpisodeContext) -> CheckResult:
    """Check whether a value was infinite before any was NaN."""
    event = origin_near(context)
    if event is not None:
        return _overflow_at_origin(origin_of(event))
    curves = [curve for curve in (context.loss, context.norm) if curve is not None]
    first: dict[str, tuple[int, str]] = {}
    for curve in curves:
        for word, is_bad in (("inf", np.isinf(curve.values)), ("nan", np.isnan(curve.values))):
            steps = curve.steps[is_bad & (curve.steps <= context.episode.end)]
            if len(steps) and (word not in first or int(steps[0]) < first[word][0]):
                first[word] = int(steps[0]), curve.name
    if "inf" not in first or ("nan" in first and first["nan"][0] < first["inf"][0]):
        if inputs := large_inputs(context):
            largest = max(inputs, key=lambda large: large.size)
            return not_checked(f"overflow: possible, {largest.words}; the largest number of fp16 is {FP16_LARGEST:.0f}")
        names = " and ".join(curve.name for curve in curves) or "the logged values"
        until = f"{context.unit} {context.episode.start}"
        return ruled_out(f"overflow: no infinity in {names} before the first NaN at {until}")
    step, name = first["inf"]
    statement, evidence = f"Overflow: {name} was infinite at {context.unit} {step}", "nothing was NaN before it"
    if "nan" in first:
        later, where = first["nan"]
        statement += ", before anything was NaN"
        evidence = f"NaN followed at {context.unit} {later} in {where}"
    in_loss = context.loss is not None and name == context.loss.name
    if in_loss and (sentence := logarithm_of_zero(context)):
        return cause_found("logarithm_of_zero", sentence, evidence, since=step)
    if in_loss and not in_half_precision(context.history):  # which a loss of usual size does not exceed
        evidence += "; a division by zero and -log(0) are infinite as well"
        return cause_found("overflow", f"{statement}.", evidence, since=step, remedies=IN_LOSS_FUNCTION)
    return cause_found("overflow", f"{statement}.", evidence, since=step)


def _overflow_at_origin(origin: NanOriginFacts) -> CheckResult:
    if overflowed(origin):
        return not_checked("overflow: see the origin of the NaN")
    if infinite_in_fp16(origin):
        return not_checked(f"overflow: possible, numbers above {FP16_LARGEST:.0f} become infinite in fp16")
    if origin.source is NanSource.INPUT:
        return ruled_out("overflow: the batch itself was non-finite")
    if origin.source in (NanSource.FORWARD, NanSource.BACKWARD) and origin.value_range is not None:
        return ruled_out(f"overflow: inputs of the operation range {input_range(origin)}, within its type")
    return not_checked("overflow: inputs of the operation are unknown")


OVERFLOW_REMEDIES = (Remedy(Action.TRAIN_IN_BF16), Remedy(Action.FIND_OVERFLOWING_MODULE))
IN_LOSS_FUNCTION = (Remedy(Action.CHECK_LOSS_FUNCTION), *OVERFLOW_REMEDIES)
CAUSES = (
    CauseType(
        "overflow",
        "Values exceeded the range of their number format.",
        "Loss or gradient norm was infinite before the first NaN, or the operation that overflowed had large finite "
        "inputs, or the inputs of the first layer were larger than 65504 in a training in fp16.",
        "A division by zero and a logarithm of zero are infinite as well.",
        OVERFLOW_REMEDIES,
    ),
    CauseType(
        "logarithm_of_zero",
        "The loss became minus infinity, as the logarithm of zero is.",
        "The loss was minus infinity before the first NaN, and not extremely large in the step before.",
        "A sum with an overflow to minus infinity; a log-likelihood that is minus infinity on purpose.",
        AGAINST_LOGARITHM,
        helped_by_smaller_updates=False,
    ),
)
CHECKS = (
    Check(large_input_check, {Symptom.NON_FINITE: 4}, frozenset({"overflow"})),
    Check(overflow_check, {Symptom.NON_FINITE: 110}, frozenset({"fp16_scale", "overflow", "logarithm_of_zero"})),
)
