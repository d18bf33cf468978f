"""Parameters that no step changes: without an optimizer, without a gradient, or not registered.

And failed attempts to freeze parameters, and to load them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted


@dataclass(frozen=True, slots=True)
class NotTrainedFacts(Facts):
    metrics: ClassVar[tuple[str, ...]] = ("tensors", "share")

    tensors: int  # Number of these parameters
    share: float  # Their share of the values of the model that require a gradient
    modules: tuple[str, ...]  # The first of their modules; empty where they belong to none

    @property
    def which(self) -> str:
        """``4 parameters of head, embed (12% of the values)``."""
        share = f"{self.share:.0%} of the values"
        of = f" of {', '.join(self.modules)}" if self.modules else " outside of the model"
        return f"{counted(self.tensors, 'parameter')}{of} ({share})"


@dataclass(frozen=True, slots=True)
class NotOptimizedFacts(NotTrainedFacts):
    kind: ClassVar[str] = "not_optimized"

    optimizer: str = ""  # The class of their optimizer, if that never takes a step

    def sentence(self, step: int, unit: str = "step", /) -> str:
        if self.optimizer:
            return f"{self.which}: gradients are computed, but their {self.optimizer} took no step up to {unit} {step}."
        if self.tensors == 1:
            return f"{self.which} has a gradient and is in no optimizer: no step changes its values."
        return f"{self.which} have a gradient and are in no optimizer: no step changes them."


class Reached(TextEnum):
    """Which parameters the loss of a training depends on whose optimizer has no gradient at all."""

    UNKNOWN = ""
    NONE = "the loss depends on no parameter"
    OTHERS = "the loss depends on other parameters only"
    THEM = "the loss depends on them, so they were cleared before the step"


@dataclass(frozen=True, slots=True)
class NoGradientFacts(NotTrainedFacts):
    kind: ClassVar[str] = "no_gradient"

    steps: int  # Number of steps
    reached: Reached = Reached.UNKNOWN  # Which parameters the loss depends on, where that is known
    called: bool = True  # Whether one of their modules was called

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        are = "is" if self.tensors == 1 else "are"
        why = f": {self.reached}" if self.reached else "" if self.called else ", as no module of theirs was called"
        return f"{self.which} {are} in the optimizer and had no gradient in {counted(self.steps, 'step')}{why}."


@dataclass(frozen=True, slots=True)
class NotOptimized(FindingType):
    """Parameters have a gradient and are in no optimizer, though the rest of the model is trained.

    What it sees: parameters of a model that require a gradient and have one at steps 10 and 20, that are in no
    optimizer, and that nothing wrote to in between. The optimizers hold at least {held:percent} of the model's values
    that require a gradient; modules in evaluation mode do not count. INFO for parameters in an optimizer whose `step()`
    was not called in the first 100 or 1,000 steps of others, while their gradients were cleared and computed again.

    Why it matters: these parameters keep their initial values. Their gradients cost time and memory.

    What to try: give the optimizer all parameters, and call `step()` of each optimizer; where they are frozen on
    purpose, set `requires_grad` to False.

    When it is wrong: a part that is frozen by leaving it out of the optimizer, or whose optimizer begins later.

    Reference: https://docs.pytorch.org/docs/stable/optim.html#constructing-it
    """

    held: float = 0.5  # minimum share of a model's values that optimizers hold where the rest was forgotten, not frozen

    kind = "not_optimized"
    of_setup = True
    noun = "parameters without an optimizer"
    order = 1129
    severities = (Severity.INFO, Severity.WARNING)
    question = "Are all parameters in an optimizer?"
    check_by_hand = "Compare the parameters in optimizer.param_groups with model.named_parameters()."
    remedies = (Remedy(Action.ADD_TO_OPTIMIZER),)


@dataclass(frozen=True, slots=True)
class NoGradient(FindingType):
    """A large part of what the optimizer holds never had a gradient.

    What it sees: parameters in an optimizer that require a gradient and had none in any look at steps 1, 10, 20 and
    100, and for which the optimizer keeps no state. A WARNING from {share:percent} of the values of the optimizers on
    ({uncalled:percent} where none of their modules was called from step 20 to step 100, as for an optional part of a
    library's model), INFO from {mentioned:percent} on. All of them count only where nothing wrote to them: then
    nothing of the model reaches the loss, or it is the optimizer of another model, or gradients are cleared before the
    step. The graph of a loss shows which, and it is reported at step 10.

    Why it matters: these parameters keep their initial values. The usual reason is a `detach()` or a `no_grad()`
    between them and the loss, or a module that `forward` does not use.

    What to try: look for `detach()`, `no_grad()`, `argmax()`, `.data`, `.item()` and conversions to NumPy between them
    and the loss; set `requires_grad` to False where it is intended.

    When it is wrong: features that are computed under `no_grad()` on purpose, experts that were never chosen, and parts
    that are trained later. Calls within compiled code are not seen.

    Reference: https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disable-grad-doc
    """

    share: float = 0.25  # minimum share of the values of the optimizers
    uncalled: float = 0.5  # the same for modules that are not called
    mentioned: float = 0.01  # minimum share for INFO

    kind = "no_gradient"
    of_setup = True
    noun = "parameters without a gradient"
    order = 1131
    severities = (Severity.INFO, Severity.WARNING)
    question = "Do all trained parameters have a gradient?"
    check_by_hand = "After backward(), print the names of the parameters whose grad is None."
    remedies = (Remedy(Action.LOOK_FOR_DETACH),)


NEVER_STEPPED = (Remedy(Action.STEP_OPTIMIZER),)
"""What to try where an optimizer takes no step."""
NO_GRADIENT_AT_ALL: Mapping[Reached, tuple[Remedy, ...]] = {
    Reached.UNKNOWN: (Remedy(Action.MAKE_OPTIMIZER_OF_MODEL), Remedy(Action.CALL_ZERO_GRAD_BEFORE_BACKWARD)),
    Reached.NONE: NoGradient.remedies,
    Reached.OTHERS: (Remedy(Action.MAKE_OPTIMIZER_OF_MODEL),),
    Reached.THEM: (Remedy(Action.CALL_ZERO_GRAD_BEFORE_BACKWARD),),
}
"""What to try where the optimizer never had a gradient."""


class Holder(TextEnum):
    """What holds modules or tensors without registering them."""

    LIST = "list"
    TUPLE = "tuple"
    DICT = "dict"
    ATTRIBUTE = "attribute"
    FORWARD = "forward pass"  # nothing holds them longer


@dataclass(frozen=True, slots=True)
class UnregisteredFacts(Facts):
    kind: ClassVar[str] = "unregistered_module"

    holder: Holder  # What holds them
    name: str  # The attribute of the model: ``blocks``; empty in a forward pass
    first: str  # The first key in the list or dict; empty for an attribute
    last: str  # The last one
    tensors: int  # Number of tensors that have a gradient and are in no optimizer
    values: int  # Number of their values

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        missing = f"{counted(self.tensors, 'tensor')} with a gradient"
        if self.holder is Holder.FORWARD:
            return f"{missing} are made again for each step: a layer is made in the forward pass, and never trained."
        if self.holder is Holder.ATTRIBUTE:
            return f"{self.name} is a tensor and no nn.Parameter: {missing} not in model.parameters(), never updated."
        several = self.first != self.last
        what = f"{self.name}.{self.first}" + (f" to {self.name}.{self.last} are" if several else " is")
        return f"{what} in a Python {self.holder}: {missing} not in model.parameters(), never updated."


@dataclass(frozen=True, slots=True)
class UnregisteredModule(FindingType):
    """Parts of the model are not trained: in a Python list, tuple or dict, plain tensors, or made in the forward pass.

    What it sees: modules, parameters or tensors in a list, tuple or dict that is an attribute of a module, or tensors
    that are attributes themselves, also those made of a parameter, as `nn.Parameter(...).t()`. They have a gradient at
    steps 10 and 20, are in no optimizer, do not belong to the registered modules, and nothing wrote to them in between.
    And two parameters or more in the graphs of the first losses that are used on values of trained layers, are gone a
    step later, and are in no optimizer.

    Why it matters: `parameters()`, `to()`, `train()` and `state_dict()` do not see them. They keep their random initial
    values, or get new ones in each step, and are not saved.

    What to try: keep modules in `nn.ModuleList` or `nn.ModuleDict`, tensors in `nn.Parameter`; make layers in
    `__init__`.

    When it is wrong: a network that is hidden in a list on purpose, such as that of a perceptual loss, and whose
    parameters still require a gradient.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html
    """

    kind = "unregistered_module"
    of_setup = True
    noun = "modules that are not registered"
    order = 1128
    question = "Are all modules registered?"
    check_by_hand = "Print [name for name, _ in model.named_parameters()]: each part of the model must be there."
    remedies = (Remedy(Action.REGISTER_MODULES),)


MADE_AGAIN = (Remedy(Action.MAKE_LAYERS_ONCE),)
"""What to try where layers are made in the forward pass."""


@dataclass(frozen=True, slots=True)
class NotFrozenFacts(Facts):
    kind: ClassVar[str] = "not_frozen"

    name: str  # The module or parameter
    attribute: str  # What was set to False
    tensors: int  # Number of its parameters that an optimizer trains

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return (
            f"{self.name}.{self.attribute} = False freezes nothing: PyTorch reads requires_grad of parameters alone. "
            f"{counted(self.tensors, 'parameter')} of it {'is' if self.tensors == 1 else 'are'} trained."
        )


@dataclass(frozen=True, slots=True)
class NotFrozen(FindingType):
    """An attribute that looks as if it froze parameters has no effect.

    What it sees: at steps 10 and 20 and later, a module with an attribute `requires_grad` that is False and that its
    class does not know, or a parameter with one of a similar name, such as `require_grad`, while an optimizer holds the
    parameters and they have gradients.

    Why it matters: these parameters are trained: pretrained features are changed, and computing their gradients costs
    time and memory.

    What to try: `module.requires_grad_(False)`, or `requires_grad = False` for each of its parameters.

    When it is wrong: an attribute of this name with another meaning.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.requires_grad_
    """

    kind = "not_frozen"
    of_setup = True
    noun = "parameters that are not frozen"
    order = 1164
    question = "Are parts that should be frozen?"
    check_by_hand = "Print [name for name, p in model.named_parameters() if p.requires_grad]."
    remedies = (Remedy(Action.FREEZE_PARAMETERS),)


@dataclass(frozen=True, slots=True)
class NothingLoadedFacts(Facts):
    kind: ClassVar[str] = "nothing_loaded"

    module: str  # Its class
    names: int = 0  # Number of names in the state dict, where the module has none of them
    given: str = ""  # The first of them
    own: str = ""  # The first name in the module
    has_own: bool = False  # Whether the state dict has the names and the tensors of the module itself

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        if self.has_own:
            return (
                f"load_state_dict() changed nothing in {self.module}: the state dict has the tensors of the module "
                "itself, not copies of them."
            )
        return (
            f"load_state_dict(strict=False) loaded nothing into {self.module}: it has none of the "
            f"{counted(self.names, 'name')} in the state dict. The first there is {self.given}, its own {self.own}."
        )


@dataclass(frozen=True, slots=True)
class NothingLoaded(FindingType):
    """A state dict was loaded without any effect.

    What it sees: calls of `load_state_dict(..., strict=False)` after `autolog()` that raise no error and have no
    name in common with the module, and that the script did not make good by writing to the parameters itself.
    Reported once, at step 10, if the module still exists, and neither it, a part of it nor its owner has loaded
    anything since, and no other module the same names. A module that has loaded some of its entries before is left
    out: a model may be in several files, and one of them may be about other modules. And loads of a state dict whose
    tensors are the parameters of the module itself: into a trained module, steps after it was taken; into another one,
    twice, with no write in between.

    Why it matters: the training begins with random weights in place of those that were saved. The usual reason is a
    prefix: `module.` of `DataParallel`, `_orig_mod.` of a compiled model, or a dict that has the state dict inside.
    `best = model.state_dict()` is not a copy: it changes with each step, so that the best weights are lost.

    What to try: rename the entries, and load with `strict=True`, or print what `load_state_dict` returns. Keep
    `copy.deepcopy(model.state_dict())`.

    When it is wrong: a module that should keep its initial weights.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict
    """

    kind = "nothing_loaded"
    of_setup = True
    noun = "weights that were not loaded"
    order = 1167
    question = "Did the model load the weights that it begins with?"
    check_by_hand = "Print what load_state_dict returns: no names may be unexpected."
    remedies = (Remedy(Action.RENAME_STATE),)


OF_OWN_STATE = (Remedy(Action.COPY_STATE),)
