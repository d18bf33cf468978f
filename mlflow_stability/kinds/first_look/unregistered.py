"""Modules and tensors that a model uses and that are not among its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.text import counted


class Holder(TextEnum):
    """What holds modules or tensors without registering them."""

    LIST = "list"
    TUPLE = "tuple"
    DICT = "dict"
    ATTRIBUTE = "attribute"


@dataclass(frozen=True, slots=True)
class UnregisteredFacts(Facts):
    """What is not registered."""

    kind: ClassVar[str] = "unregistered_module"
    metrics: ClassVar[tuple[str, ...]] = ("tensors", "values")

    holder: Holder
    """What holds them."""
    name: str
    """The attribute of the model: ``blocks``."""
    first: str
    """The first key in the list or dict; empty for an attribute."""
    last: str
    """The last one."""
    tensors: int
    """Number of tensors that have a gradient and are in no optimizer."""
    values: int
    """Number of their values."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``blocks.0 to blocks.5 are in a Python list: 12 tensors are not in model.parameters(), …``"""
        missing = f"{counted(self.tensors, 'tensor')} with a gradient"
        if self.holder is Holder.ATTRIBUTE:
            return f"{self.name} is a tensor and no nn.Parameter: {missing} not in model.parameters(), never updated."
        several = self.first != self.last
        what = f"{self.name}.{self.first}" + (f" to {self.name}.{self.last} are" if several else " is")
        return f"{what} in a Python {self.holder}: {missing} not in model.parameters(), never updated."


@dataclass(frozen=True, slots=True)
class UnregisteredModule(FindingType):
    """Parts of the model are in a Python list, tuple or dict, or are plain tensors, and are not trained.

    What it sees: modules, parameters or tensors in a list, tuple or dict that is an attribute of a module, or tensors
    that are attributes themselves. They have a gradient at steps 10 and 20, are in no optimizer, do not belong to the
    registered modules, and nothing wrote to them in between.

    Why it matters: `parameters()`, `to()`, `train()` and `state_dict()` do not see them. They keep their random initial
    values, and are not saved.

    What to try: keep modules in `nn.ModuleList` or `nn.ModuleDict`, tensors in `nn.Parameter`.

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
