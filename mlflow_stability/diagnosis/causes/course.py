"""Find causes in the set-up and in the course of a run: mistakes of the first steps, chance level, overfitting, the end
of the process, repeated or changed data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, after_last
from mlflow_stability.detectors.finding_type import FindingType, Symptom
from mlflow_stability.detectors.loss_level import classes_at_chance, recorded_classes
from mlflow_stability.diagnosis.causes.catalog import CauseType, Check, CheckResult, cause_found, not_checked, ruled_out
from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.diagnosis.recorded_settings import may_follow_scale
from mlflow_stability.kinds.first_look.batches import InputScale
from mlflow_stability.kinds.first_look.dimensions import SameOutput
from mlflow_stability.kinds.first_look.loss_function import (
    AboveChance,
    AboveChanceRule,
    Activation,
    ChanceFacts,
    LossInputFacts,
)
from mlflow_stability.kinds.first_look.not_trained import NoGradient, NoGradientFacts
from mlflow_stability.kinds.first_look.settings import ZeroGroupFacts
from mlflow_stability.kinds.loss.divergence_rules import UnboundedFallFacts
from mlflow_stability.kinds.progress.no_progress import StandstillFacts
from mlflow_stability.kinds.progress.overfitting import LastBelowBestFacts, Overfitting
from mlflow_stability.kinds.progress.plateau import LastLevelFacts, Plateau, PlateauFacts
from mlflow_stability.kinds.progress.repeated_data import ConstantOutput, NoNoiseFacts, RepeatedData
from mlflow_stability.kinds.reported.autopilot import DataChanged, DataChangedFacts
from mlflow_stability.kinds.reported.endings import WAYS_TO_END
from mlflow_stability.kinds.reported.setup import LintFacts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

PREVENT_LEARNING = (
    "loss_input loss_broadcast equal_weights same_input weight_decay_strong no_gradient not_optimized "
    "unregistered_module learning_rate_zero gradient_underflow updates_lost epsilon_large clipping_scaled "
    "clipping_strong input_scale one_class targets_ignored targets_unreachable dropout_strong batch_as_sequence "
    "attention_dim mixed_dimensions group_rate_zero target_sum gradients_discarded"
)
"""Kinds of mistakes that keep a training from learning, the most direct first."""
SUMS = "accumulation_sum loss_sum"  # kinds that make steps larger, except those of an optimizer that scales its own
RAISE_LOSS = "loss_input label_range input_scale optimized_twice clipping_late loss_sum accumulation_sum one_class"
"""Kinds of mistakes that make a loss rise, or fall without end, the most direct first."""
FIRST_LOSSES = 10  # number of losses whose median is the first level
ONSET_STEPS = 64  # maximum number of steps from changed data to a divergence: twice what its baseline needs
NO_NOISE_STEPS = 16  # number of losses without noise where a finding does not record it
LOSSES_BEFORE = 100  # number of losses before repeated data that it must fall below


def standstill_check(context: EpisodeContext) -> CheckResult:
    """Check for a mistake in the set-up that keeps the model from learning."""
    mistakes = [finding for kind in PREVENT_LEARNING.split() for finding in context.findings_of(kind)]
    return _first_mistake(context, (*mistakes, *filter(_misses_mean, context.findings_of(AboveChance.kind))))


def _misses_mean(finding: Finding) -> bool:
    """Whether the loss stayed far above the variance of its targets, so that their mean would be a better answer."""
    facts = finding.facts_as(ChanceFacts)
    return facts is not None and facts.is_stuck and not facts.classes and facts.last >= _far_level(facts)


def _far_level(facts: ChanceFacts) -> float:
    return AboveChanceRule().far * facts.chance


def without_gradient_check(context: EpisodeContext) -> CheckResult:
    """Check whether nothing that the optimizer holds ever had a gradient."""
    mistakes = [(mistake, mistake.facts_as(NoGradientFacts)) for mistake in context.findings_of(NoGradient.kind)]
    return _first_mistake(context, (mistake for mistake, facts in mistakes if facts is not None and facts.share == 1.0))


def rise_check(context: EpisodeContext) -> CheckResult:
    """Check for a mistake in the set-up that makes a loss or gradients grow."""
    findings = (finding for kind in RAISE_LOSS.split() for finding in context.findings_of(kind))
    far = (finding for finding in context.findings_of(AboveChance.kind) if _was_always_far(finding, context.whole_loss))
    return _first_mistake(context, (*filter(_lets_loss_grow, findings), *far, *context.events_of(LintFacts.kind)))


def _was_always_far(finding: Finding, loss: Curve | None) -> bool:
    """Whether the loss began far above the variance of its targets, by more than a batch, and has not doubled since.

    The first loss counts beside the median of the first ones: it is the only one from before the first update.
    """
    facts = finding.facts_as(ChanceFacts)
    first = np.zeros(0) if loss is None else loss.values[np.isfinite(loss.values)][:FIRST_LOSSES]
    if facts is None or not len(first) or not _misses_mean(finding):
        return False
    return float(first[0]) >= _far_level(facts) <= float(np.median(first)) >= facts.last / 2


def finding_check(kind: type[FindingType]) -> Callable[[EpisodeContext], CheckResult]:
    return lambda context: _first_mistake(context, context.findings_of(kind.kind))


def unbounded_check(context: EpisodeContext) -> CheckResult:
    """Name a loss without a lower bound as a mistake in the set-up."""
    facts = context.episode.facts_as(UnboundedFallFacts)
    if facts is None:
        return CheckResult()
    return cause_found(
        "setup",
        "The loss has no lower bound: a sign is wrong, or the loss function gets an input that it does not expect.",
        since=None,
        remedies=context.episode.remedies,
    )


def _lets_loss_grow(finding: Finding) -> bool:
    """Return False for probabilities in place of logits, which bound the loss."""
    facts = finding.facts_as(LossInputFacts)
    return facts is None or facts.activation in (Activation.LINEAR, Activation.LOG_TARGET)


def _first_mistake(context: EpisodeContext, findings: Iterable[Finding]) -> CheckResult:
    for finding in findings:
        is_sum = finding.kind in SUMS.split() and may_follow_scale(context.history)
        facts = finding.facts_as(LintFacts)
        is_unbounded = facts is not None and facts.check == "betas_swapped"
        group = finding.facts_as(ZeroGroupFacts)
        is_large_group = group is not None and group.share >= NoGradient().share
        given = finding.facts_as(LossInputFacts)
        is_nan = given is not None and given.activation is Activation.LOG_TARGET  # always
        if finding.severity >= Severity.WARNING or is_sum or is_unbounded or is_large_group:
            return cause_found(
                "setup",
                finding.message,
                since=min(finding.step, context.episode.start),
                certainty="certain" if is_nan else "likely",
                remedies=finding.remedies,
                repeats=((finding.kind, finding.step),),
            )
    return CheckResult()


def changed_data_check(context: EpisodeContext) -> CheckResult:
    """Check whether restored weights showed that the data or the loss function changed; else nothing is ruled out."""
    start = context.episode.start
    for event in context.events_of(DataChanged.kind):
        facts = event.facts
        if not isinstance(facts, DataChangedFacts):
            continue
        if facts.onset - ONSET_STEPS <= start <= max(facts.onset + ONSET_STEPS, event.step):
            return cause_found("data_changed", facts.reason, since=min(facts.onset, start), certainty="certain")
    return CheckResult()


def chance_check(context: EpisodeContext) -> CheckResult:
    plateau, standstill = context.episode.facts_as(PlateauFacts), context.episode.facts_as(StandstillFacts)
    flat = context.episode.facts_as(LastLevelFacts)
    last = math.nan if plateau is None else plateau.loss
    last = last if flat is None else flat.last
    last = last if standstill is None else standstill.last
    named = recorded_classes(context.history.params)
    # A loss that fell first has learned something: only a recorded number of classes is no coincidence.
    classes = classes_at_chance(last, named) if last > 0 and (named or standstill is None) else 0
    if not classes:  # that of a loss that never left the chance level of the classes in its graph
        levels = [finding.facts_as(ChanceFacts) for finding in context.findings_of(AboveChance.kind)]
        stuck = (level for level in levels if level is not None and level.is_stuck)
        classes = next((level.classes for level in stuck if last * AboveChanceRule().least <= level.chance), 0)
    classes = classes or (plateau.classes if plateau is not None and plateau.classes else 0)
    if classes > 1:
        return cause_found(
            "guessing",
            f"The loss is at chance level for {classes} classes ({last:.3g}): check labels, inputs and the learning "
            "rate.",
            f"ln {classes} = {math.log(classes):.4g}, loss {last:.4g}",
            since=None,
        )
    if named:
        usual = " or ".join(f"{math.log(count):.3g} for {count:,}" for count in sorted(set(named))[:3])
        return ruled_out(f"chance level: {usual} classes, loss {last:.3g}")
    return ruled_out(f"chance level: loss {last:.3g} matches none of the usual numbers of classes")


def overfitting_check(context: EpisodeContext) -> CheckResult:
    """Name overfitting, which is its own evidence."""
    facts, statement = context.episode.facts_as(LastBelowBestFacts), "The model overfits"
    if facts is None:
        statement += ": the validation loss rises while the training loss falls."
        return cause_found("overfitting", statement, since=None)
    best = f"{context.unit} {facts.best_step}"
    return cause_found(
        "overfitting",
        f"{statement} since {best}, the best validation loss.",
        f"validation loss {facts.best:.3g} at {best}, {facts.last:.3g} at the end",
        since=None,
    )


def end_check(context: EpisodeContext) -> CheckResult:
    kind, detail = context.episode.kind, context.history.outcome_detail
    name, statement = {
        "out_of_memory": ("out_of_memory", "The process ran out of memory."),
        "killed": ("external_kill", "The process was killed."),
        "crashed": ("exception", "The script raised an exception."),
        "stall": ("stall", "The process hung: no step finished for a long time."),
    }.get(kind, (kind, context.episode.message))
    return cause_found(name, statement, detail, since=None, certainty="certain")


def repeated_data_check(context: EpisodeContext) -> CheckResult:
    """Check whether one batch is repeated: the loss lost its noise, and falls."""
    loss, start, unit = context.loss, context.episode.start, context.unit
    if loss is None:
        return not_checked("repeated data: no loss was logged")
    facts = context.episode.facts_as(NoNoiseFacts)
    count, usual = (NO_NOISE_STEPS, 0.0) if facts is None else (facts.steps, facts.usual)
    values = loss.values[: int(np.searchsorted(loss.steps, start, side="right"))]
    low = max(0, len(values) - count)
    smooth, earlier = values[low:][np.isfinite(values[low:])], values[:low][np.isfinite(values[:low])]
    if len(smooth) < 2 or len(earlier) < 2:
        return not_checked("repeated data: too few losses before it")
    last, earlier = float(smooth[-1]), earlier[-LOSSES_BEFORE:]
    if last >= float(earlier.min()):
        return ruled_out(
            f"repeated data: the loss lost its noise and did not fall, {earlier[-1]:.3g} before and {last:.3g} after "
            f"{count} {unit}s"
        )
    first = min(start - count + 1, int(loss.steps[_first_smooth(values, low, usual)]))
    return cause_found(
        "repeated_data",
        f"The same batch was repeated from about {unit} {first} on: the loss lost its noise and fell to {last:.3g}, "
        f"below all of the {len(earlier)} losses before. The model overfits one batch.",
        f"{count} losses in a row without noise from batch to batch; before, it was {usual:.1%} of the loss",
        since=min(first, start),
    )


def _first_smooth(values: NDArray[np.float64], low: int, usual: float) -> int:
    """Return the index of the first loss without noise: `low`, or one before it by at most as much as follows it."""
    begin = after_last(~(values[:low] > 0))
    bends = np.abs(np.diff(np.log(values[begin:]), 2))
    after_noise = after_last(~(bends[: max(0, low - begin)] < RepeatedData().share * usual))
    first = begin + after_noise + 1 if after_noise else begin
    return first if first <= low - (len(values) - low) else low


def constant_output_check(context: EpisodeContext) -> CheckResult:
    """Check whether the loss lost its noise because the output no longer depends on the input."""
    if context.loss is None:
        return not_checked("constant output: no loss was logged")
    facts, course = context.episode.facts_as(NoNoiseFacts), "without falling"
    if facts is not None and facts.before is not None:
        course = f"and rose from {facts.before:.3g} to {facts.loss:.3g}"
    return cause_found(
        "constant_output",
        f"The loss lost its noise {course}: the output probably no longer depends on the input.",
        since=context.episode.start,
        certainty="possible",
    )


REMEDIES_OF_END = {end.kind: end.remedies for end in WAYS_TO_END}
CAUSES = (
    CauseType(
        "guessing",
        "The loss is at chance level.",
        "The loss stays at the logarithm of a number of classes.",
        "A loss that has such a value by coincidence.",
        Plateau.remedies,
        phrase="chance level",
    ),
    CauseType(
        "overfitting",
        "The model memorises its training data.",
        "The validation loss rises while the training loss falls.",
        "Validation data that differs from the training data.",
        Overfitting.remedies,
    ),
    CauseType(
        "repeated_data",
        "The same batch was repeated.",
        "The loss lost its noise from batch to batch and fell below all of the 100 losses before.",
        "Full-batch training, which has little noise from the start.",
        RepeatedData.remedies,
    ),
    CauseType(
        "data_changed",
        "The data or the loss function changed, and the weights are not to blame.",
        "After a rollback, before any update, the restored weights give a clearly higher loss than they gave before "
        "(certain). Or the loss jumped in one step, loss, gradient norm and learning rate of the step before were "
        "normal, and the next 8 losses are as high (possible).",
        "Noise with heavy tails, once in thousands of rollbacks. Without a rollback: weights or buffers that other "
        "code wrote to.",
        DataChanged.remedies,
        helped_by_smaller_updates=False,
        phrase="changed data",
    ),
    CauseType(
        "constant_output",
        "The output no longer depends on the input.",
        "The loss lost its noise without falling, and no collapse or vanishing gradient explains it; or it jumped in "
        "one step, and is the same number in each step since.",
        "A data set whose batches are nearly identical.",
        ConstantOutput.remedies,
    ),
    CauseType(
        "out_of_memory",
        "The process ran out of memory.",
        "The recorded end of the process.",
        "Memory that another process used.",
        REMEDIES_OF_END["out_of_memory"],
    ),
    CauseType(
        "external_kill",
        "The process was killed.",
        "It ended by a signal.",
        "The kernel kills processes that use too much memory.",
        REMEDIES_OF_END["killed"],
        phrase="killed process",
    ),
    CauseType(
        "exception",
        "The script raised an exception.",
        "The recorded end of the process, with the exception.",
        "An earlier finding may have caused the exception; it is checked first.",
        REMEDIES_OF_END["crashed"],
    ),
    CauseType(
        "stall",
        "The process hung: no step finished for a long time.",
        "The time since the last step was many times the usual step time.",
        "A long validation or checkpoint between two steps.",
        REMEDIES_OF_END["stall"],
    ),
    CauseType(
        "setup",
        "A mistake in the set-up keeps the model from learning, or makes its loss unbounded.",
        "A finding about the set-up: an input that the loss does not expect, a loss over all pairs, inputs of an "
        "unusual size or the same for each row, the same output for each row, a batch that is taken for a sequence, "
        "attention with its softmax over a wrong dimension, batches of one class, ignored targets, too strong a "
        "weight decay or clipping, parameters without a gradient or without an optimizer, modules that are not "
        "registered, a learning rate of zero, swapped betas of Adam, steps or gradients that precision takes away.",
        "A mistake that costs little beside another one.",
        (Remedy(Action.CHECK_INTENTION),),
        helped_by_smaller_updates=False,
        phrase="mistake in the set-up",
    ),
)
CHECKS = (
    Check(standstill_check, {Symptom.STUCK: 5, Symptom.VANISHING: 5}, frozenset({"setup"})),
    Check(without_gradient_check, {Symptom.TINY_UPDATES: 5, Symptom.DEAD_LAYER: 5}, frozenset({"setup"})),
    Check(rise_check, {Symptom.RISING: 5, Symptom.NON_FINITE: 5}, frozenset({"setup"})),
    Check(finding_check(InputScale), {Symptom.INSIDE: 5}, frozenset({"setup"})),
    Check(unbounded_check, {Symptom.RISING: 6}, frozenset({"setup"})),
    Check(changed_data_check, {Symptom.RISING: 12, Symptom.LARGE_UPDATES: 12}, frozenset({"data_changed"})),
    Check(finding_check(SameOutput), {Symptom.STUCK: 50}, frozenset({"setup"})),
    Check(chance_check, {Symptom.STUCK: 60}),
    Check(overfitting_check, {Symptom.OVERFITTING: 10}),
    Check(end_check, {Symptom.ENDED: 10}),
    Check(repeated_data_check, {Symptom.REPEATED_DATA: 10}, frozenset({"repeated_data"})),
    Check(constant_output_check, {Symptom.REPEATED_DATA: 40}),
)
