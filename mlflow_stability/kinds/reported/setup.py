"""Findings about how a training is set up: changes, unusual model settings, parts that are not measured.

They are reported, not detected; each is documented here in the same sections as every detector. All but one are INFO.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Severity


@dataclass(frozen=True, slots=True)
class ConfigurationChanged(FindingType):
    """A setting of the training changed while it ran.

    What it sees: another weight decay, other betas, a new parameter group, parameters frozen or unfrozen, another batch
    shape, another number of micro-batches in a step, gradients that are cleared again. Each is reported once it holds
    for two checks in a row, every 10 steps. The learning rate has its own series, and changes by the autopilot are
    reported separately.

    Why it matters: curves change where a setting changed, and the run's parameters hold only the first value.

    What to try: compare the curves from this step on with the change.

    When it is wrong: a setting that a schedule changes in few large steps. A setting that keeps changing is reported
    three times.

    Reference: https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options
    """

    kind = "configuration_changed"
    noun = "a change of the configuration"
    plural = "changes of the configuration"
    question = "Did a setting change before it?"
    check_by_hand = "Compare the configuration with that of the last run that worked; print optimizer.param_groups."
    order = 1120
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.COMPARE_WITH_CHANGE),)


@dataclass(frozen=True, slots=True)
class ModelLint(FindingType):
    """A model setting is rarely intended.

    What it sees: once, at the first steps: normalisations with an epsilon below 1e-6 in half precision (1e-8
    otherwise), attention scaled by less than 1e-4, batch normalisation over fewer than 4 rows, Adam whose first beta is
    above its second, and parameters that have a gradient but are in no optimizer, that are tied, in two optimizers, or
    frozen in all of these steps.

    Why it matters: parameters without an optimizer do not learn, and their gradients accumulate. Too small an epsilon
    lets gradients explode where a row is constant. Means of few rows are noise, and differ from those in evaluation.
    Adam that forgets squares of gradients before the gradients takes steps without a bound after each large one.

    What to try: check whether it is intended.

    When it is wrong: tied and frozen parameters are mostly intended; an optimizer that steps for the first time later
    is not known yet.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html
    """

    kind = "model_lint"
    noun = "a remark on the model"
    plural = "remarks on the model"
    order = 1130
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.CHECK_INTENTION),)


@dataclass(frozen=True, slots=True)
class EvaluationMode(FindingType):
    """The model is trained in evaluation mode.

    What it sees: `training` of the whole model is False at an optimizer step, in two checks in a row, every 10 steps.
    A WARNING where batch normalisations whose weights are trained do not update their running statistics; INFO where
    dropout alone is off. Each is reported once.

    Why it matters: the model normalises with statistics that do not fit its weights: from the first step on those of
    an untrained model, later those of an earlier step. Dropout that does nothing regularises nothing.

    What to try: call `model.train()` after each validation, at the top of the training loop.

    When it is wrong: layers in evaluation mode within a model in training mode are intended, and not reported. A whole
    model is fine-tuned so on purpose now and then.

    Reference: https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval
    """

    kind = "evaluation_mode"
    noun = "training in evaluation mode"
    order = 1125
    severities = (Severity.INFO, Severity.WARNING)
    remedies = (Remedy(Action.CALL_TRAIN),)


@dataclass(frozen=True, slots=True)
class MissingZeroGrad(FindingType):
    """The gradients of earlier steps are still there when a step begins.

    What it sees: one parameter of each optimizer, after its step and before the next backward pass. In three steps in a
    row its gradient was neither replaced, nor written to, nor set to zero. Reported once, with the first of these
    steps, and again after it was cleared in between; a `configuration_changed` says since when it is cleared again.

    Why it matters: the optimizer gets the sum of all gradients since then. Steps become larger and point to the past,
    until the training oscillates or diverges.

    What to try: call `optimizer.zero_grad()` in every step, or after each accumulation.

    When it is wrong: a script that adds gradients over several optimizer steps on purpose. Not seen where gradients are
    split over processes or copied by an engine. A fact, not a statistic: no false alarm in 64 healthy trainings
    (`tests/benchmarks/healthy_trainings.py`).

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    """

    kind = "missing_zero_grad"
    noun = "uncleared gradients"
    question = "Are gradients cleared between steps?"
    check_by_hand = "Print the norm before each backward pass: it must be 0, or None, once for each optimizer step."
    order = 1122
    severities = (Severity.WARNING,)
    remedies = (Remedy(Action.CALL_ZERO_GRAD),)


@dataclass(frozen=True, slots=True)
class NotMeasured(FindingType):
    """A part of the training cannot be measured.

    What it sees: once, at the first steps: a model that is not found among Python's objects, because `gc.freeze()`
    hides it; parameters split over processes (FSDP, `DTensor`), of which some statistics need all. A training
    without a loss in 20 steps (`torch.func`, `torch.autograd.grad`, a pipeline stage, gradients that the script sets).
    Later: a model whose insides are not measured, because something is compiled, or because running it once more might
    change the training.

    Why it matters: it explains missing values in the run; nothing is wrong with the training.

    What to try: call `gc.freeze()` after the first step; log the norm that the script's own clipping returns.

    When it is wrong: objects were frozen, and the parameters belong to no module.

    Reference: https://docs.python.org/3/library/gc.html#gc.freeze
    """

    kind = "not_measured"
    noun = "a part that is not measured"
    plural = "parts that are not measured"
    order = 1140
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.CALL_GC_FREEZE_LATER),)


@dataclass(frozen=True, slots=True)
class BatchDiscarded(FindingType):
    """The script discarded the gradients of a batch with a non-finite loss.

    What it sees: a backward pass from a NaN or infinite loss whose gradients were set to None or zero before the
    optimizer step, by the script or by an optimizer wrapper (DeepSpeed on overflow). Where gradients go into other
    buffers: such a loss in a step of several backward passes whose gradient norm is finite.

    Why it matters: the batch belongs to no step, so no curve shows it. The data or the model still produced it.

    What to try: inspect the batch.

    When it is wrong: a batch of ignored labels has a NaN loss and zero gradients; these may have been part of the step
    and changed nothing.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    """

    kind = "batch_discarded"
    noun = "a discarded batch"
    plural = "discarded batches"
    order = 1110
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.INSPECT_BROKEN_BATCH),)


@dataclass(frozen=True, slots=True)
class RepresentationSummary(FindingType):
    """The representations of a module, summarised at the end of the training.

    What it sees: once for each measured module: means over all measurements, the last values, the number of warnings,
    and a verdict.

    Why it matters: a collapse that came and went, or that was there from the start, is easily missed in single
    findings.

    What to try: read the findings of the same module, which say when it started.

    When it is wrong: a training that ended before there were three measurements has too little to summarise.

    Reference: Ahmad and Hawkins, Properties of sparse distributed representations (arXiv:1503.07469)
    """

    kind = "representation_summary"
    noun = "a summary of representations"
    plural = "summaries of representations"
    order = 1150
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.READ_FINDINGS_OF_MODULE),)
