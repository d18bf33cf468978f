"""Optimizers of Keras and fastai as torch's: their parameters, learning rates and state.

In: an optimizer that is no `torch.optim.Optimizer`, and what its step was called with. Out: an `Optimizer` that shares
its tensors and is never stepped. Guarantees: neither library is imported; what is written into a learning rate holds
for one step; gradients that a step was given are the gradients of their parameters while hooks look, and not after.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer


class OptimizerView(Optimizer):
    """One foreign optimizer."""

    MODULE: ClassVar[str]
    """Where its library has the class: looked for among the modules that are loaded."""
    CLASS: ClassVar[str]
    STEP: ClassVar[str]
    """The method that takes a step."""

    def __init__(self, theirs: Any) -> None:
        # Torch's own `__init__` is not called: no optimizer was made.
        self._theirs = weakref.ref(theirs)
        self.defaults: dict[str, Any] = {}
        self.param_groups: list[dict[str, Any]] = []

    @classmethod
    def of(cls, theirs: Any) -> OptimizerView:
        """The view of an optimizer; its class has the name of theirs."""
        named: type[OptimizerView] = type(type(theirs).__name__, (cls,), {})
        return named(theirs)

    @property
    def state(self) -> Any:  # type: ignore[override] # torch's is an attribute
        """What it keeps for each parameter."""
        theirs = self._theirs()
        return {} if theirs is None else self._state_of(theirs)

    @property
    def has_gradients(self) -> bool:
        """Whether there is anything to be stepped with."""
        return any(each.grad is not None for group in self.param_groups for each in group["params"])

    def begin(self, theirs: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Be as the optimizer is at the beginning of this step."""
        raise NotImplementedError

    def take_over(self, theirs: Any) -> None:
        """Give the optimizer the learning rates that were written here for this step."""

    def end(self, theirs: Any) -> None:
        """Put back what belongs to the script."""

    def _state_of(self, theirs: Any) -> Any:
        raise NotImplementedError


class FastaiView(OptimizerView):
    """`fastai.optimizer.Optimizer`; its wrapper of a torch optimizer needs no view."""

    MODULE, CLASS, STEP = "fastai.optimizer", "Optimizer", "step"

    def begin(self, theirs: Any, _args: Sequence[Any], _kwargs: dict[str, Any]) -> None:
        """Parameters are fixed; hyper-parameters are set anew at each batch."""
        if not self.param_groups:
            self.param_groups = [{"params": list(each)} for each in theirs.param_lists]
        for group, hypers in zip(self.param_groups, theirs.hypers, strict=True):
            # Schedules of fastai are numpy's: what follows expects numbers of Python.
            group.update({name: getattr(each, "item", lambda each=each: each)() for name, each in hypers.items()})

    def take_over(self, theirs: Any) -> None:
        """Give the optimizer the learning rates that were written here for this step."""
        self._set_rates(theirs, [group.get("lr") for group in self.param_groups])

    def end(self, theirs: Any) -> None:
        """Put the script's learning rates back."""
        self._set_rates(theirs, self._rates)

    def _set_rates(self, theirs: Any, rates: Iterable[Any]) -> None:
        self._rates = [hypers.get("lr") for hypers in theirs.hypers]
        for hypers, rate in zip(theirs.hypers, rates, strict=True):
            if rate is not None:
                hypers["lr"] = rate

    def _state_of(self, theirs: Any) -> Any:
        return theirs.state


class KerasView(OptimizerView):
    """`keras.optimizers.Optimizer` where Keras runs on torch."""

    MODULE, CLASS, STEP = "keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"

    def begin(self, theirs: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """The gradients and variables of this step are what `apply` is called with."""
        gradients, variables = (*args, None, None)[:2] if args else (kwargs.get("grads"), None)
        variables = kwargs.get("trainable_variables") if variables is None else variables
        if variables is None:
            variables = theirs._trainable_variables
        if not theirs.built:  # as `apply` would: a rollback to before the first step restores what is there
            with sys.modules["keras"].name_scope(theirs.name, caller=theirs):
                theirs.build(variables)
            theirs.built = True
        parameters = [each.value for each in variables]
        if not self.param_groups or list(map(id, self.param_groups[0]["params"])) != list(map(id, parameters)):
            self.param_groups = [{"params": parameters}]
        rate = theirs.learning_rate
        self._is_scheduled = not hasattr(rate, "value")
        self.param_groups[0]["lr"] = getattr(rate, "value", rate)  # the tensor itself: written here, it holds there
        if theirs.weight_decay is not None:
            self.param_groups[0]["weight_decay"] = theirs.weight_decay
        self._own: list[tuple[Tensor, Tensor | None]] = []
        for parameter, gradient in zip(parameters, gradients or (), strict=False):
            if gradient is not parameter.grad:
                self._own.append((parameter, parameter.grad))
                parameter.grad = gradient

    def take_over(self, theirs: Any) -> None:
        """Give the optimizer the learning rate that was written here; a schedule would compute it anew."""
        if self._is_scheduled:
            rate = self.param_groups[0]["lr"]
            vars(theirs)["_get_current_learning_rate"] = lambda: rate

    def end(self, theirs: Any) -> None:
        """Put the script's gradients and schedule back."""
        vars(theirs).pop("_get_current_learning_rate", None)
        while self._own:
            parameter, gradient = self._own.pop()
            parameter.grad = gradient

    def _state_of(self, theirs: Any) -> Any:
        if not theirs.built or not self.param_groups:
            return {}
        # Under one parameter: they are tensors with names of their own, and belong to no parameter by identity.
        tensors = {each.path: each.value for each in theirs.variables if each is not theirs._learning_rate}
        return {self.param_groups[0]["params"][0]: tensors}


VIEWS: tuple[type[OptimizerView], ...] = (KerasView, FastaiView)
