"""What a recording says of how a training is set up: that it was changed, that a model looks odd, what is not seen.

Nothing here looks at points. The words stand here, in the sections of every judgement, so that each is explained in the
same way; all are for information and never the fault of a run by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.engine.finding_type import FindingType
from mlflow_stability.vocabulary.result.event import Severity


@dataclass(frozen=True, slots=True)
class ConfigurationChanged(FindingType):
    """Something about the training was changed while it ran.

    What it sees: another weight decay, other betas, a further parameter group, parameters that were frozen or freed,
    batches of another shape, another number of micro-batches in a step; each once it holds for two looks in a row,
    every 10 steps. The learning rate is a series of its own, and what the autopilot does is told as such.

    Why it matters: curves bend where something was changed, and the run's parameters say only how it began.

    What to try: compare what the curves do from this step on with what was changed.

    When it is wrong: a setting that a schedule changes in few large steps; what changes for ever is told three times.

    Reference: https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options
    """

    kind = "configuration_changed"
    noun = "a change of the configuration"
    plural = "changes of the configuration"
    order = 1120
    severities = (Severity.INFO,)
    remedies = ("Compare what the curves do from this step on with what was changed.",)


@dataclass(frozen=True, slots=True)
class ModelLint(FindingType):
    """Something about the model is seldom meant.

    What it sees: once, at the first steps: normalisations with an epsilon below 1e-6 in half precision (1e-8
    otherwise), attention scaled by less than 1e-4, parameters that want gradients and are in no optimizer, that are
    tied, frozen, or in two optimizers.

    Why it matters: parameters that no optimizer has do not learn, and their gradients pile up; an epsilon that is too
    small lets gradients explode where a row is constant.

    What to try: see whether it is meant.

    When it is wrong: tied and frozen parameters are mostly meant; an optimizer that steps for the first time later on
    is not known yet.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html
    """

    kind = "model_lint"
    noun = "a remark on the model"
    plural = "remarks on the model"
    order = 1130
    severities = (Severity.INFO,)
    remedies = ("See whether it is meant.",)


@dataclass(frozen=True, slots=True)
class NotMeasured(FindingType):
    """Something of the training cannot be measured.

    What it sees: once, at the first steps: a model that is not found among Python's objects, because `gc.freeze()` has
    hidden it; parameters that are split over processes (FSDP, `DTensor`), of whose norms each process knows a part.
    A training in which no loss was seen in 20 steps (`torch.func`, `torch.autograd.grad`, a pipeline stage, gradients
    that the script sets). When it is first due: a model that is not looked into, because something is compiled, or
    because running it once more might change the training.

    Why it matters: what is missing from the run is missing for this reason, and nothing is wrong with the training.

    What to try: call `gc.freeze()` after the first step; log the norm that the script's own clipping gives.

    When it is wrong: objects were frozen, and the parameters belong to no module at all.

    Reference: https://docs.python.org/3/library/gc.html#gc.freeze
    """

    kind = "not_measured"
    noun = "a part that is not measured"
    plural = "parts that are not measured"
    order = 1140
    severities = (Severity.INFO,)
    remedies = ("Call `gc.freeze()` after the first step of the training.",)


@dataclass(frozen=True, slots=True)
class BatchDiscarded(FindingType):
    """The script discarded the gradients of a batch whose loss was not finite.

    What it sees: a backward pass that began at a NaN or an infinite loss, and whose gradients were set to None or zero
    before the optimizer stepped, by the script or by what wraps the optimizer (DeepSpeed on overflow). Where gradients
    go into other buffers: such a loss in a step of several backward passes whose gradient norm is finite.

    Why it matters: the batch belongs to no step, so that no curve shows it; the data or the model produced it all the
    same.

    What to try: inspect the batch.

    When it is wrong: a batch of ignored labels alone has a NaN loss and gradients of zero; its gradients may have been
    part of the step and changed nothing.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    """

    kind = "batch_discarded"
    noun = "a discarded batch"
    plural = "discarded batches"
    order = 1110
    severities = (Severity.INFO,)
    remedies = ("Inspect the batch whose loss was not finite.",)


SETUP_KINDS: tuple[type[BatchDiscarded | ConfigurationChanged | ModelLint | NotMeasured], ...] = (
    BatchDiscarded,
    ConfigurationChanged,
    ModelLint,
    NotMeasured,
)
"""All of them."""
