"""Looks for the cause in what was found when the broken step was run again: the origin of its first non-finite value.

What the batch held before the model met it, and what the optimizer's state holds, is seen directly. An operation that
overflowed is mostly the end of a story: causes that come before it are asked first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not, not_seen
from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.diagnosis.causes.one_batch import sudden_check, unsound_before, value_at
from mlflow_stability.kinds.reported.batches import BrokenBatchFacts, Rerun
from mlflow_stability.kinds.reported.nan_origin import NanOriginFacts, NanSource
from mlflow_stability.vocabulary.result import Action, Finding, Remedy

KIND = "nan_origin"
BROKEN_BATCH = "broken_batch"


@dataclass(frozen=True, slots=True)
class OriginLimits:
    """Thresholds of the causes of the first non-finite value."""

    near: int = 2
    """Maximum number of steps between a break and a finding of the same."""
    absurd: float = 1000000000000000.0
    """Magnitude that one step of a normal training does not reach."""
    modest: float = 10.0
    """Magnitude that overflows in no type: an infinity from it comes from an undefined operation."""


ORIGIN_LIMITS = OriginLimits()


def origin_near(around: EpisodeContext) -> Finding | None:
    """The event that says where the first number that is not finite was born; None: it was not looked for."""
    events = (each for each in around.said(KIND) if isinstance(each.facts, NanOriginFacts))
    return next((each for each in events if near(around, each)), None)


def origin_of(finding: Finding | Finding) -> NanOriginFacts:
    """The facts of a `nan_origin`."""
    facts = finding.facts
    return facts if isinstance(facts, NanOriginFacts) else NanOriginFacts(NanSource.ELSEWHERE, text=finding.message)


def near(around: EpisodeContext, event: Finding) -> bool:
    """Whether an event belongs to the beginning of the episode."""
    return around.episode.start <= event.step <= around.episode.start + ORIGIN_LIMITS.near


def range_of(origin: NanOriginFacts) -> str:
    """What went into the operation, in words; empty where it is not known."""
    if origin.value_range is None:
        return ""
    least, greatest = origin.value_range
    return f"from {shown(least)} to {shown(greatest)}"


def overflowed(origin: NanOriginFacts) -> bool:
    """Whether large finite numbers went in and exceeded what the type can hold; told by the numbers where not said."""
    if origin.overflowed is not None:
        return origin.overflowed
    if origin.source is not NanSource.FORWARD:
        return False
    largest = ORIGIN_LIMITS.modest if origin.value_range is None else max(map(abs, origin.value_range))
    infinite = origin.output is not None and origin.output.inf > 0 and origin.output.nan == 0
    return largest >= (ORIGIN_LIMITS.modest if infinite else ORIGIN_LIMITS.absurd)


NAMES = {
    NanSource.WEIGHT: "damaged_weights",
    NanSource.BUFFER: "damaged_weights",
    NanSource.BACKWARD: "gradient_non_finite",
    NanSource.ELSEWHERE: "tensor_from_outside",
}
"""What it is where that with which the operation was done was broken already."""


def origin_check(around: EpisodeContext) -> CheckResult:
    """Where the first number that is not finite was born."""
    origin = origin_near(around)
    if origin is None:
        return not_seen("origin of the NaN: the non-finite step was not run again")
    look = _of_its_source(around, origin)
    if look.cause is not None and look.cause.since is not None:
        # The first step of a training, or of a row of broken steps, is mostly looked at a step or two later.
        look = CheckResult(replace(look.cause, since=min(look.cause.since, around.episode.start)))
    if look.cause is None or not origin_of(origin).is_exact or look.cause.name == "damaged_weights":
        return look
    return CheckResult(replace(look.cause, remedies=origin.remedies))


def _of_its_source(around: EpisodeContext, origin: Finding) -> CheckResult:
    facts = origin_of(origin)
    source, since, repeats = facts.source, origin.step, ((KIND, origin.step),)
    sound = not unsound_before(around)
    evidence = _inputs(facts)
    if source is NanSource.INPUT:
        return is_it("bad_batch", facts.statement, evidence, since=since, certainty="certain", repeats=repeats)
    if source is NanSource.OPTIMIZER:
        sure, place = "certain" if sound else "likely", origin.place
        return is_it(
            "optimizer_state", facts.statement, evidence, since=since, certainty=sure, place=place, repeats=repeats
        )
    if source is NanSource.LOSS:
        # With a finite loss it broke on the way back: a slope, a hook, a loss scale.
        name = "gradient_non_finite" if _loss_was_finite(around, origin.step) else "loss_function"
        return is_it(name, facts.statement, evidence, since=since, repeats=repeats)
    if source in NAMES:
        return is_it(NAMES[source], facts.statement, evidence, since=since, place=origin.place, repeats=repeats)
    return _of_the_forward_pass(around, origin, sound)


def one_step_check(around: EpisodeContext) -> CheckResult:
    """Whether it was one batch out of a sound training, and if so, what in the model or the loss could not bear it."""
    batch, origin = sudden_check(around), origin_near(around)
    if origin is None:
        return batch
    if batch.cause is None:  # where it was born is known; whether another batch would have met it is not
        return not_seen(batch.ruled_out or batch.unseen)
    born = origin_check(around).cause
    if born is None or born.name in ("bad_batch", "damaged_weights", "optimizer_state"):
        return batch
    if born.name == "overflow":  # large numbers in, larger ones out: whether they were the batch's is not known
        evidence = (*batch.cause.evidence, origin_of(origin).statement)
        repeats = (*batch.cause.repeats, (KIND, origin.step))
        told = replace(batch.cause, evidence=evidence, place=born.place, remedies=born.remedies, repeats=repeats)
        return CheckResult(told)
    return CheckResult(replace(born, evidence=(*born.evidence, *batch.cause.evidence)))


def from_the_start_check(around: EpisodeContext) -> CheckResult:
    """Whether it was not finite before any optimizer step had been taken."""
    step = around.episode.start
    if not around.before_any_update:
        return CheckResult()
    batches = [each for each in around.said(BROKEN_BATCH) if near(around, each)]
    return is_it(
        "broken_from_start",
        f"Not finite at {around.unit} {step}, before any optimizer step was taken: the batch, the loss function or "
        "the initial weights caused it. Learning rate and optimizer had no part in it.",
        *(each.message for each in batches),
        since=step,
        repeats=tuple((BROKEN_BATCH, each.step) for each in batches),
    )


def hardware_check(around: EpisodeContext) -> CheckResult:
    """Whether the same batch gave finite numbers the second time."""
    looked = [each for each in around.said(BROKEN_BATCH) if near(around, each)]
    facts = looked[0].facts if looked else None
    rerun = facts.rerun if isinstance(facts, BrokenBatchFacts) else None
    if rerun not in (Rerun.HARDWARE, Rerun.DATA_OR_NUMERICS):
        return not_seen("hardware: the batch was not run again")
    if rerun is Rerun.HARDWARE:
        return is_it(
            "hardware",
            f"The batch of {around.unit} {looked[0].step} was non-finite once and finite when run again with the "
            "same weights and random numbers: a hardware fault, or a non-deterministic operation.",
            looked[0].message,
            since=looked[0].step,
            repeats=((BROKEN_BATCH, looked[0].step),),
        )
    return is_not("hardware: the same batch was non-finite again when run a second time")


def _of_the_forward_pass(around: EpisodeContext, origin: Finding, sound: bool) -> CheckResult:
    facts, repeats = origin_of(origin), ((KIND, origin.step),)
    largest = 0.0 if facts.value_range is None else max(map(abs, facts.value_range))
    given = _modest_batch(around)
    if sound and largest > ORIGIN_LIMITS.absurd and given:
        return is_it(
            "damaged_weights",
            f"The weights were corrupted at {around.unit} {origin.step}: values up to {shown(largest)} reached "
            f"{origin.place or 'the model'} from {given}; the step before was normal. Check what writes to the "
            "weights, and the device memory.",
            facts.statement,
            since=origin.step,
            place=origin.place,
            repeats=repeats,
        )
    name = "overflow" if overflowed(facts) else "invalid_operation"
    return is_it(name, facts.statement, _inputs(facts), since=origin.step, place=origin.place, repeats=repeats)


def _modest_batch(around: EpisodeContext) -> str:
    """What came in, in words, where it is known to hold no absurd number; empty: it may."""
    if around.history.params.get("stability.batch", "").startswith(("int", "uint", "bool")):
        return "a batch of integers"
    for each in around.said(BROKEN_BATCH):
        tensors = each.facts.tensors if isinstance(each.facts, BrokenBatchFacts) else ()
        ranges = [abs(end) for tensor in tensors for end in (tensor.least, tensor.greatest) if end is not None]
        if near(around, each) and ranges and max(ranges) < ORIGIN_LIMITS.absurd:
            return f"a batch with values up to {shown(max(ranges))}"
    return ""


def _loss_was_finite(around: EpisodeContext, step: int) -> bool:
    loss = around.loss
    value = None if loss is None else value_at(loss, step)
    return value is not None and isfinite(value)


def _inputs(origin: NanOriginFacts) -> str:
    ranges = range_of(origin)
    return f"inputs range {ranges}" if ranges else ""


CAUSES = (
    CauseDocumentation(
        "loss_function",
        "The loss function produced the first non-finite value.",
        "The non-finite step was run again, and the inputs of the loss were finite.",
        "Labels or logits that are invalid for any loss function.",
        (Remedy(Action.CHECK_LOSS_FUNCTION), Remedy(Action.CHECK_LOSS_TERMS_OF_BATCH)),
        helped_by_smaller_updates=False,
    ),
    CauseDocumentation(
        "invalid_operation",
        "An operation of the model is undefined for its inputs.",
        "The non-finite step was run again, and the inputs of the operation were finite and of moderate size.",
        "Inputs that are wrong for an earlier reason.",
        (Remedy(Action.CLAMP_INPUTS),),
        helped_by_smaller_updates=False,
    ),
    CauseDocumentation(
        "tensor_from_outside",
        "A tensor of the script outside the model was non-finite.",
        "The non-finite step was run again, and the value came from neither an input nor a weight nor a buffer.",
        "A tensor that the script computes from the batch.",
        (Remedy(Action.INSPECT_TENSOR_OF_SCRIPT),),
        helped_by_smaller_updates=False,
        phrase="non-finite tensor outside the model",
    ),
    CauseDocumentation(
        "optimizer_state",
        "The optimizer state was non-finite or extremely large.",
        "The weights became non-finite in an update with finite gradients.",
        "Weights that other code wrote to.",
        (Remedy(Action.RESTART_BEFORE_STEP), Remedy(Action.LOWER_BETA2_OR_CLIP)),
    ),
    CauseDocumentation(
        "broken_from_start",
        "The first forward or backward pass was non-finite, before any optimizer step.",
        "Loss or gradient norm of the first step of the training is NaN or infinite. Where the step was run again and "
        "its operation was found, that is named instead.",
        "A training that continues from weights that were broken before.",
        (Remedy(Action.CHECK_FIRST_TARGETS), Remedy(Action.CHECK_OPERATIONS), Remedy(Action.CHECK_INPUTS_AND_WEIGHTS)),
        helped_by_smaller_updates=False,
        phrase="non-finite from the start",
    ),
    CauseDocumentation(
        "hardware",
        "The device gave a different result the second time.",
        "The non-finite batch was run again with the same weights and random numbers, and was finite.",
        "A non-deterministic operation; a model with state of its own between calls.",
        (Remedy(Action.TEST_DEVICE),),
        helped_by_smaller_updates=False,
    ),
)
CHECKS = (
    Check(origin_check, {Symptom.NON_FINITE: 90}),
    Check(one_step_check, {Symptom.NON_FINITE: 40}, frozenset({"bad_batch"})),
    Check(hardware_check, {Symptom.NON_FINITE: 30}, frozenset({"hardware"})),
    Check(from_the_start_check, {Symptom.NON_FINITE: 125}, frozenset({"broken_from_start"})),
)
