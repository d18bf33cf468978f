"""Findings about how a training is set up: changes, unusual model settings, parts that are not measured."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted


class Setting(TextEnum):
    """A setting of a training that is compared while it runs."""

    BATCH_SHAPE = "batch shape"
    MICRO_BATCHES = "micro-batches"
    CLIPPING_NORM = "clipping norm"
    CLIPPING_VALUE = "clipping value"
    PARAMETER_GROUPS = "parameter groups"
    TRAINED_PARAMETERS = "trained parameters"
    OPTIMIZERS_MADE = "optimizers made"  # of the same parameters
    GROUP_OPTION = "group option"  # an option of a parameter group, such as its weight decay
    GRADIENTS_CLEARED = "gradients cleared"  # gradients are cleared again


_NAMES = {
    Setting.BATCH_SHAPE: "The shape of the batches",
    Setting.MICRO_BATCHES: "The number of micro-batches in a step",
    Setting.CLIPPING_NORM: "The gradient clipping norm",
    Setting.CLIPPING_VALUE: "The gradient clipping value",
    Setting.PARAMETER_GROUPS: "The number of parameter groups",
    Setting.TRAINED_PARAMETERS: "The number of trained parameters",
    Setting.OPTIMIZERS_MADE: "The number of optimizers that were made of the same parameters",
}


@dataclass(frozen=True, slots=True)
class SettingName:
    """Which setting, and whose."""

    setting: Setting  # The setting
    option: str = ""  # The option of a parameter group: ``weight_decay``
    owner: str = ""  # Such as ``group 0 of AdamW``; empty for settings of the whole training

    def __str__(self) -> str:
        name = self.option if self.setting is Setting.GROUP_OPTION else _NAMES.get(self.setting, self.setting)
        return f"{name} of {self.owner}" if self.owner else name


@dataclass(frozen=True, slots=True)
class ConfigurationFacts(Facts):
    kind = "configuration_changed"

    name: SettingName  # Which setting
    before: str = ""  # Its value before
    after: str = ""  # Its value since
    last_report: bool = False  # Whether further changes of it are not reported
    not_cleared_since: int | None = None  # Where gradients are cleared again: the first step at which they were not

    def numbers(self) -> dict[str, float]:
        if self.not_cleared_since is not None:
            return {"not_cleared_since": float(self.not_cleared_since)}
        try:
            return {"before": float(self.before), "after": float(self.after)}
        except ValueError:  # words, or several numbers
            return {}

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        if self.not_cleared_since is not None:
            return f"Gradients are cleared again at step {step}; since step {self.not_cleared_since} they were not."
        last = " It changes often; further changes are not reported." if self.last_report else ""
        return f"{self.name} changed from {self.before} to {self.after}, seen at step {step}.{last}"


@dataclass(frozen=True, slots=True)
class UnclearedFacts(Facts):
    """Gradients of earlier steps are still there when a step begins."""

    kind = "missing_zero_grad"

    steps: int  # Number of steps in a row in which they were not cleared
    optimizer: str = ""  # Their optimizer, of several: ``optimizer_1 (Adam)``

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        whose = f" of {self.optimizer}" if self.optimizer else ""
        return (
            f"Gradients{whose} are not cleared since step {step}: each step used those of the step before as well, "
            f"{self.steps} steps in a row."
        )


@dataclass(frozen=True, slots=True)
class LintFacts(Facts):
    """A setting of the model that is rarely intended."""

    kind = "model_lint"

    check: str  # Which check found it: ``frozen``, ``small_eps``, ``few_rows``
    text: str  # What it found, in a sentence
    values: tuple[tuple[str, float], ...] = ()  # Numbers behind that, with their names

    def numbers(self) -> dict[str, float]:
        return dict(self.values)

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return self.text


class Unmeasured(TextEnum):
    HIDDEN_MODEL = "hidden model"  # python does not list the model among its objects
    SPLIT_PARAMETERS = "split parameters"  # no process has all of some parameters
    INSIDE = "inside"  # activations, attention and representations of a model
    LOSS = "loss"  # no backward pass began at a scalar tensor


@dataclass(frozen=True, slots=True)
class NotMeasuredFacts(Facts):
    kind = "not_measured"
    metrics = ("parameters",)

    part: Unmeasured  # Which part
    model: str = ""  # The model, where it is about the inside of one
    reason: str = ""  # Why, where that differs from model to model
    parameters: int | None = None  # Number of trained parameters that are concerned, where it is about these
    of_parameters: int | None = None  # Number of all trained parameters
    steps: int | None = None  # Number of steps without a loss; None where it is not about the loss
    one_process: bool = False  # Whether the parameters are split although there is one process

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        count = f"{self.parameters} of {self.of_parameters} trained parameters"
        if self.part is Unmeasured.HIDDEN_MODEL:
            return (
                f"Layers, throughput and facts of the model are not recorded: the model that owns {count} was not "
                "found. Objects frozen by `gc.freeze()` before the first step cannot be found."
            )
        if self.part is Unmeasured.SPLIT_PARAMETERS:
            parts = "Gradient norm and layers"
            if not self.one_process:
                parts = "AdamW RMS, extreme values and histograms by layer"
            return f"{parts} are not recorded: {count} are split over processes. Everything else is recorded."
        if self.part is Unmeasured.INSIDE:
            return f"Activations, attention and representations of {self.model} are not measured: {self.reason}."
        return (
            f"No loss recorded in {self.steps} step{'' if self.steps == 1 else 's'}: no backward pass began at a "
            "scalar tensor. Typical reasons: torch.func, torch.autograd.grad, a pipeline stage, a CUDA graph, or "
            "gradients set by the script. Gradient norms and learning rates are recorded."
        )


def _are(count: int, noun: str) -> str:
    return f"{counted(count, noun)} {'is' if count == 1 else 'are'}"


@dataclass(frozen=True, slots=True)
class EvaluationModeFacts(Facts):
    kind = "evaluation_mode"

    norms: int  # Number of batch normalisations that do not update their running statistics
    dropouts: int  # Number of dropout layers that are off
    module: str  # The first of them

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        parts = []
        if self.norms:
            parts.append(f"{_are(self.norms, 'batch normalisation')} not updating the running statistics")
        if self.dropouts:
            parts.append(f"{_are(self.dropouts, 'dropout layer')} off")
        return f"The model is trained in evaluation mode, seen at step {step}: {', '.join(parts)} ({self.module})."


@dataclass(frozen=True, slots=True)
class DiscardedBatchFacts(Facts):
    kind = "batch_discarded"

    losses: tuple[float, ...]  # The first losses that were discarded before the step
    discarded: int  # Number of such losses so far

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        losses = ", ".join(f"{loss:g}" for loss in self.losses)
        return (
            f"A non-finite loss ({losses}) before step {step} belongs to no step: the script discarded its gradients. "
            f"{self.discarded} such loss{'' if self.discarded == 1 else 'es'} so far."
        )


@dataclass(frozen=True, slots=True)
class ConfigurationChanged(FindingType):
    """A setting of the training changed while it ran.

    What it sees: another weight decay, other betas, a new parameter group, parameters frozen or unfrozen, another batch
    shape, another number of micro-batches in a step, another optimizer of the same parameters, gradients that are
    cleared again. Each is reported once it holds
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
    above its second, dropout that `forward` calls as a function without its argument `training`, and parameters that
    have a gradient but are in no optimizer, that are tied, in two optimizers, or frozen in all of these steps.

    Why it matters: parameters without an optimizer do not learn, and their gradients accumulate. Too small an epsilon
    lets gradients explode where a row is constant. Means of few rows are noise, and differ from those in evaluation.
    Adam that forgets squares of gradients before the gradients takes steps without a bound after each large one.
    Dropout that stays on in evaluation makes the validation loss noisy and too high.

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
    of_setup = True
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
    (`python -m tests.benchmarks healthy_trainings`).

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    """

    kind = "missing_zero_grad"
    noun = "uncleared gradients"
    question = "Are gradients cleared between steps?"
    check_by_hand = "Print the norm before each backward pass: it must be 0, or None, once for each optimizer step."
    order = 1122
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
