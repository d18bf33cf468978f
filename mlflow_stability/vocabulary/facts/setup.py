"""Facts about how a training is set up, and what changed about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.facts.text_enum import TextEnum
from mlflow_stability.vocabulary.text.phrases import counted


class Setting(TextEnum):
    """A setting of a training that is compared while it runs."""

    BATCH_SHAPE = "batch shape"
    MICRO_BATCHES = "micro-batches"
    CLIPPING_NORM = "clipping norm"
    CLIPPING_VALUE = "clipping value"
    PARAMETER_GROUPS = "parameter groups"
    TRAINED_PARAMETERS = "trained parameters"
    GROUP_OPTION = "group option"
    """An option of a parameter group, such as its weight decay."""
    GRADIENTS_CLEARED = "gradients cleared"
    """Gradients are cleared again."""


_NAMES = {
    Setting.BATCH_SHAPE: "The shape of the batches",
    Setting.MICRO_BATCHES: "The number of micro-batches in a step",
    Setting.CLIPPING_NORM: "The gradient clipping norm",
    Setting.CLIPPING_VALUE: "The gradient clipping value",
    Setting.PARAMETER_GROUPS: "The number of parameter groups",
    Setting.TRAINED_PARAMETERS: "The number of trained parameters",
}


@dataclass(frozen=True, slots=True)
class SettingName:
    """Which setting, and whose."""

    setting: Setting
    """The setting."""
    option: str = ""
    """The option of a parameter group: ``weight_decay``."""
    owner: str = ""
    """Such as ``group 0 of AdamW``; empty for settings of the whole training."""

    def __str__(self) -> str:
        name = self.option if self.setting is Setting.GROUP_OPTION else _NAMES.get(self.setting, self.setting)
        return f"{name} of {self.owner}" if self.owner else name


@dataclass(frozen=True, slots=True)
class ConfigurationFacts(Facts):
    """A setting changed while the training ran."""

    kind: ClassVar[str] = "configuration_changed"

    name: SettingName
    """Which setting."""
    before: str = ""
    """Its value before."""
    after: str = ""
    """Its value since."""
    last_report: bool = False
    """Whether further changes of it are not reported."""
    not_cleared_since: int | None = None
    """Where gradients are cleared again: the first step at which they were not."""

    def numbers(self) -> dict[str, float]:
        """The values, where both are numbers."""
        if self.not_cleared_since is not None:
            return {"not_cleared_since": float(self.not_cleared_since)}
        try:
            return {"before": float(self.before), "after": float(self.after)}
        except ValueError:  # words, or several numbers
            return {}

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``weight_decay of AdamW changed from 0.01 to 0.1, seen at step 40.``"""
        if self.not_cleared_since is not None:
            return f"Gradients are cleared again at step {step}; since step {self.not_cleared_since} they were not."
        often = " It changes often; further changes are not reported." if self.last_report else ""
        return f"{self.name} changed from {self.before} to {self.after}, seen at step {step}.{often}"


@dataclass(frozen=True, slots=True)
class UnclearedFacts(Facts):
    """Gradients of earlier steps are still there when a step begins."""

    kind: ClassVar[str] = "missing_zero_grad"

    steps: int
    """Number of steps in a row in which they were not cleared."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Gradients are not cleared since step 12: …``"""
        return (
            f"Gradients are not cleared since step {step}: each step used those of the step before as well, "
            f"{self.steps} steps in a row."
        )


@dataclass(frozen=True, slots=True)
class LintFacts(Facts):
    """A setting of the model that is rarely intended."""

    kind: ClassVar[str] = "model_lint"

    check: str
    """Which check found it: ``frozen``, ``small_eps``, ``few_rows``."""
    text: str
    """What it found, in a sentence."""
    values: tuple[tuple[str, float], ...] = ()
    """Numbers behind that, with their names."""

    def numbers(self) -> dict[str, float]:
        """The numbers, by name."""
        return dict(self.values)

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """The text: it is about the model, and not about a step."""
        return self.text


class Unmeasured(TextEnum):
    """A part of a training that is not measured."""

    HIDDEN_MODEL = "hidden model"
    """Python does not list the model among its objects."""
    SPLIT_PARAMETERS = "split parameters"
    """No process has all of some parameters."""
    INSIDE = "inside"
    """Activations, attention and representations of a model."""
    LOSS = "loss"
    """No backward pass began at a scalar tensor."""


@dataclass(frozen=True, slots=True)
class NotMeasuredFacts(Facts):
    """A part of the training is not measured."""

    kind: ClassVar[str] = "not_measured"
    metrics: ClassVar[tuple[str, ...]] = ("parameters",)

    part: Unmeasured
    """Which part."""
    model: str = ""
    """The model, where it is about the inside of one."""
    reason: str = ""
    """Why, where that differs from model to model."""
    parameters: int | None = None
    """Number of trained parameters that are concerned; None where it is not about parameters."""
    of_parameters: int | None = None
    """Number of all trained parameters."""
    steps: int | None = None
    """Number of steps without a loss; None where it is not about the loss."""
    one_process: bool = False
    """Whether the parameters are split although there is one process."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``Activations, attention and representations of net are not measured: …``"""
        some = f"{self.parameters} of {self.of_parameters} trained parameters"
        if self.part is Unmeasured.HIDDEN_MODEL:
            return (
                f"Layers, throughput and facts of the model are not recorded: the model that owns {some} was not "
                "found. Objects frozen by `gc.freeze()` before the first step cannot be found."
            )
        if self.part is Unmeasured.SPLIT_PARAMETERS:
            what = "AdamW RMS, extreme values and histograms by layer"
            what = "Gradient norm and layers" if self.one_process else what
            return f"{what} are not recorded: {some} are split over processes. Everything else is recorded."
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
    """The model is trained in evaluation mode."""

    kind: ClassVar[str] = "evaluation_mode"

    norms: int
    """Number of batch normalisations that do not update their running statistics."""
    dropouts: int
    """Number of dropout layers that are off."""
    module: str
    """The first of them."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``The model is trained in evaluation mode, seen at step 20: 2 dropout layers are off (net.drop).``"""
        parts = []
        if self.norms:
            parts.append(f"{_are(self.norms, 'batch normalisation')} not updating the running statistics")
        if self.dropouts:
            parts.append(f"{_are(self.dropouts, 'dropout layer')} off")
        return f"The model is trained in evaluation mode, seen at step {step}: {', '.join(parts)} ({self.module})."


@dataclass(frozen=True, slots=True)
class DiscardedBatchFacts(Facts):
    """The script discarded the gradients of a batch with a non-finite loss."""

    kind: ClassVar[str] = "batch_discarded"
    metrics: ClassVar[tuple[str, ...]] = ("discarded",)

    losses: tuple[float, ...]
    """The first losses that were discarded before the step."""
    discarded: int
    """Number of such losses so far."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``A non-finite loss (nan) before step 40 belongs to no step: …``"""
        losses = ", ".join(f"{each:g}" for each in self.losses)
        return (
            f"A non-finite loss ({losses}) before step {step} belongs to no step: the script discarded its gradients. "
            f"{self.discarded} such loss{'' if self.discarded == 1 else 'es'} so far."
        )
