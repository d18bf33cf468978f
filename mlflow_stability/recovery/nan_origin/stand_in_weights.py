"""Runs a model on stand-ins of its weights and buffers, with gradients or without.

In: a model, and what it is to be called with. Out: nothing; the model has stand-ins for a while. Guarantees: the
training's parameters get no gradient and their hooks are not called, its buffers keep their values, and its modules
have their own again afterwards. The stand-ins of weights share their memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules import module as torch_module

from mlflow_stability.probes.hooks import MODULE_CALLS, torch_api

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


@contextmanager
def shadowed(model: Module, with_gradients: bool) -> Iterator[None]:
    """Inside, the model has stand-ins of its weights, and copies of its buffers."""
    stand_ins: dict[int, Tensor] = {}
    before = [(each, _Own(each)) for each in Module.modules(model)]
    try:
        for module, own in before:
            own.replace(module, stand_ins, with_gradients)
        yield
    finally:
        for module, own in before:
            own.put_back(module)


@contextmanager
def observers_muted(model: Module) -> Iterator[None]:
    """Within it, calls of the model are not observed; the script's hooks run, and are the same afterwards."""
    tables = [getattr(each, name) for each in Module.modules(model) for name in _HOOKS]
    tables += [getattr(torch_module, f"_global{name}") for name in _HOOKS]
    before = [(table, dict(table)) for table in tables]
    try:
        with MODULE_CALLS.muted():
            yield
    finally:
        for table, hooks in before:
            if list(table) != list(hooks):
                table.clear()
                table.update(hooks)


def apart(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with, apart from the graph of gradients that it came with."""
    detached: tuple[tuple[Any, ...], dict[str, Any]] = torch_api.tree_map(_apart, (args, dict(kwargs)))
    return detached


def _apart(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    return value.detach().requires_grad_()


def _stand_in(own: Tensor, with_gradient: bool) -> Tensor:
    """The same numbers, as a parameter where it is one: a model may write `self.weight += 1`, which takes no other."""
    if type(own) is Parameter:
        return Parameter(own.detach(), requires_grad=with_gradient)
    return own.detach().requires_grad_(with_gradient)


class _Own:
    """The parameters and buffers of one module."""

    def __init__(self, module: Module) -> None:
        self._parameters = dict(module._parameters)
        self._buffers = dict(module._buffers)
        self._flat: list[Any] | None = module.__dict__.get("_flat_weights")
        self._compiled = module.__dict__.get("_compiled_call_impl")

    def replace(self, module: Module, stand_ins: dict[int, Tensor], with_gradients: bool) -> None:
        for name, own in self._parameters.items():
            if own is not None:
                if id(own) not in stand_ins:
                    stand_ins[id(own)] = _stand_in(own, with_gradients and own.requires_grad)
                module._parameters[name] = stand_ins[id(own)]  # type: ignore[assignment]
        for name, buffer in self._buffers.items():
            if buffer is not None:
                if id(buffer) not in stand_ins:
                    stand_ins[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = stand_ins[id(buffer)]
        if self._flat is not None:  # torch's recurrent modules keep a list of their weights beside
            module.__dict__["_flat_weights"] = [stand_ins.get(id(each), each) for each in self._flat]
        if self._compiled is not None:
            module.__dict__["_compiled_call_impl"] = None

    def put_back(self, module: Module) -> None:
        module._parameters.clear()
        module._parameters.update(self._parameters)
        module._buffers.clear()
        module._buffers.update(self._buffers)
        if self._flat is not None:
            module.__dict__["_flat_weights"] = self._flat
        if self._compiled is not None:
            module.__dict__["_compiled_call_impl"] = self._compiled
