"""Watches the steps of optimizers that do not derive from `torch.optim.Optimizer`: those of Keras on torch, and fastai.

They are shown as an `Optimizer` that shares their tensors and is never stepped. Guarantees: no library is imported; one
that has changed is left alone, and the part is switched off; a step whose gradients were removed is not taken; what
hooks write into a learning rate holds for one step; gradients that a step was given are those of their parameters
while hooks look, and not after.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.hooks.guarded_hooks import HookHandles, TrainingThread
from mlflow_stability.probes.probe import Guard


class OptimizerView(Optimizer):
    MODULE: ClassVar[str]  # module of its class
    CLASS: ClassVar[str]
    STEP: ClassVar[str]  # the method that takes a step

    def __init__(self, optimizer: Any) -> None:
        # Torch's own `__init__` is not called: no optimizer was made.
        self._theirs = weakref.ref(optimizer)
        self.defaults: dict[str, Any] = {}
        self.param_groups: list[dict[str, Any]] = []

    @property
    def state(self) -> Any:  # type: ignore[override] # torch's is an attribute
        optimizer = self._theirs()
        return {} if optimizer is None else self._state_of(optimizer)

    @property
    def has_gradients(self) -> bool:
        return any(parameter.grad is not None for group in self.param_groups for parameter in group["params"])

    def begin(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Take over parameters, settings and gradients at the beginning of a step."""
        raise NotImplementedError

    def take_over(self, optimizer: Any) -> None:
        """Give the optimizer the learning rates that hooks wrote for this step."""

    def end(self, optimizer: Any) -> None:
        """Restore what belongs to the script."""

    def _state_of(self, optimizer: Any) -> Any:
        raise NotImplementedError


class FastaiView(OptimizerView):
    """`fastai.optimizer.Optimizer`; its wrapper of a torch optimizer needs no view."""

    MODULE, CLASS, STEP = "fastai.optimizer", "Optimizer", "step"

    def begin(self, optimizer: Any, _args: Sequence[Any], _kwargs: dict[str, Any]) -> None:
        if not self.param_groups:
            self.param_groups = [{"params": list(parameters)} for parameters in optimizer.param_lists]
        for group, hypers in zip(self.param_groups, optimizer.hypers, strict=True):
            # Schedules of fastai give numbers of numpy.
            group.update({name: getattr(value, "item", lambda value=value: value)() for name, value in hypers.items()})

    def take_over(self, optimizer: Any) -> None:
        self._set_rates(optimizer, [group.get("lr") for group in self.param_groups])

    def end(self, optimizer: Any) -> None:
        self._set_rates(optimizer, self._rates)

    def _set_rates(self, optimizer: Any, rates: Iterable[Any]) -> None:
        self._rates = [hypers.get("lr") for hypers in optimizer.hypers]
        for hypers, rate in zip(optimizer.hypers, rates, strict=True):
            if rate is not None:
                hypers["lr"] = rate

    def _state_of(self, optimizer: Any) -> Any:
        return optimizer.state


class KerasView(OptimizerView):
    """`keras.optimizers.Optimizer` where Keras runs on torch."""

    MODULE, CLASS, STEP = "keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"

    def begin(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        gradients, variables = (*args, None, None)[:2] if args else (kwargs.get("grads"), None)
        variables = kwargs.get("trainable_variables") if variables is None else variables
        if variables is None:
            variables = optimizer._trainable_variables
        if not optimizer.built:  # as `apply` would: a rollback to before the first step restores what is there
            with sys.modules["keras"].name_scope(optimizer.name, caller=optimizer):
                optimizer.build(variables)
            optimizer.built = True
        parameters = [variable.value for variable in variables]
        if not self.param_groups or list(map(id, self.param_groups[0]["params"])) != list(map(id, parameters)):
            self.param_groups = [{"params": parameters}]
        rate = optimizer.learning_rate
        self._is_scheduled = not hasattr(rate, "value")
        self.param_groups[0]["lr"] = getattr(rate, "value", rate)  # the tensor itself: a write to it holds there
        if optimizer.weight_decay is not None:
            self.param_groups[0]["weight_decay"] = optimizer.weight_decay
        self._own: list[tuple[Tensor, Tensor | None]] = []
        for parameter, gradient in zip(parameters, gradients or (), strict=False):
            if gradient is not parameter.grad:
                self._own.append((parameter, parameter.grad))
                parameter.grad = gradient

    def take_over(self, optimizer: Any) -> None:
        if self._is_scheduled:  # its schedule would compute the rate again
            rate = self.param_groups[0]["lr"]
            vars(optimizer)["_get_current_learning_rate"] = lambda: rate

    def end(self, optimizer: Any) -> None:
        vars(optimizer).pop("_get_current_learning_rate", None)
        while self._own:
            parameter, gradient = self._own.pop()
            parameter.grad = gradient

    def _state_of(self, optimizer: Any) -> Any:
        if not optimizer.built or not self.param_groups:
            return {}
        # Under one parameter: these tensors have names and are not assigned to parameters.
        rate = optimizer._learning_rate
        tensors = {variable.path: variable.value for variable in optimizer.variables if variable is not rate}
        return {self.param_groups[0]["params"][0]: tensors}


VIEWS: tuple[type[OptimizerView], ...] = (KerasView, FastaiView)


PART = "optimizers of other libraries"


class ForeignOptimizers:
    def __init__(
        self,
        guard: Guard,
        handles: HookHandles,
        thread: TrainingThread,
        before: Callable[[Optimizer], None],
        after: Callable[[Optimizer], None],
    ) -> None:
        self._handles, self._thread = handles, thread
        self._before, self._after = before, after
        self._views: WeakKeyDictionary[Any, OptimizerView] = WeakKeyDictionary()
        self._watched: set[type[OptimizerView]] = set()
        self.modules = 0  # number of loaded modules at the last `look`
        self._begin = guard(PART, self._begin_view)
        self._take_over = guard(PART, self._is_to_be_taken)
        self._end = guard(PART, self._end_view)

    def look(self) -> None:
        """Watch the libraries that the script has loaded since."""
        self.modules = len(sys.modules)
        for kind in VIEWS:
            owner = getattr(sys.modules.get(kind.MODULE), kind.CLASS, None)
            if kind not in self._watched and hasattr(owner, kind.STEP):
                self._watched.add(kind)
                self._handles.patch(owner, kind.STEP, partial(self._around_step, kind), self._thread)

    def forget(self) -> None:
        self._watched.clear()
        self.modules = 0

    def _around_step(
        self, kind: type[OptimizerView], original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        view: OptimizerView | None = self._begin(kind, optimizer, args, kwargs)
        if view is None:
            return original(optimizer, *args, **kwargs)
        try:
            self._before(view)
            skips = self._take_over(view, optimizer) is False
            result = None if skips else original(optimizer, *args, **kwargs)
        finally:
            self._end(view, optimizer)
        self._after(view)
        return result

    def _begin_view(
        self, kind: type[OptimizerView], optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OptimizerView | None:
        view = self._views.get(optimizer)
        if view is None:
            named: type[OptimizerView] = type(type(optimizer).__name__, (kind,), {})  # as the optimizer's own class
            view = self._views[optimizer] = named(optimizer)
        view.begin(optimizer, args, kwargs)
        if not view.has_gradients:
            view.end(optimizer)
            return None
        return view

    @staticmethod
    def _is_to_be_taken(view: OptimizerView, optimizer: Any) -> bool:
        view.take_over(optimizer)
        return view.has_gradients

    @staticmethod
    def _end_view(view: OptimizerView, optimizer: Any) -> None:
        view.end(optimizer)
