"""Counts the floating point operations of a forward pass while it runs, or says why not.

In: the forward pass of a training, between `enter` and `leave`. Out: operations of matrix products, convolutions,
attention and recurrent layers, multiplications and additions, by torch's formulas; a reason where there is no number.
Guarantees: every operation runs as it would have; operations without a formula are named; counting ends before
anything is traced or compiled. Attention is counted in full, causal or not, as in published model FLOPs.

Under a `TorchDispatchMode` the constructor of a tensor subclass raises a RuntimeError, because the empty tensor it
starts from is a plain `torch.Tensor` for good. `FragileTensors` therefore suspends the mode while such an object is
made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import flop_registry

from mlflow_stability.probes.forward.compiled_models import CompiledCodeWatch, compiled, too_deep
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.hook_handles import HookHandles
from mlflow_stability.probes.objects.model_discovery import parameters_in


class FragileTensors:
    """The classes, during one pass."""

    def __init__(self, stepped_aside: Callable[[], AbstractContextManager[None]]) -> None:
        self._stepped_aside = stepped_aside
        self._handles = HookHandles()

    def put_on(self) -> None:
        """Begin."""
        for each in _below(Tensor):
            self._watch(each)
        inherited = Tensor.__init_subclass__.__func__ if "__init_subclass__" in vars(Tensor) else None  # type: ignore[attr-defined]
        handles = self._handles

        def defined(kind: type[Any], /, **kwargs: Any) -> None:
            if inherited is None:
                super(Tensor, kind).__init_subclass__(**kwargs)  # type: ignore[misc]
            else:
                inherited(kind, **kwargs)
            if handles.hold_anything:
                self._watch(kind)

        handles.replace(Tensor, "__init_subclass__", classmethod(defined))

    def take_off(self) -> None:
        """End; once more does no harm."""
        self._handles.remove()

    def _watch(self, kind: type) -> None:
        if _is_fragile(kind):
            self._handles.patch(kind, "__new__", self._made)

    def _made(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._stepped_aside():
            return original(*args, **kwargs)


def _is_fragile(kind: type) -> bool:
    maker = next(each for each in kind.__mro__ if "__new__" in vars(each))
    if maker in Tensor.__mro__:
        return True
    if maker is not kind:  # what is done to the class that makes it is done for it
        return False
    if maker.__module__.startswith("torch."):  # those that define how they are made do it in another way
        return False
    made_by = vars(maker)["__new__"]
    code = getattr(inspect.unwrap(getattr(made_by, "__func__", made_by)), "__code__", None)
    return code is None or "__new__" in code.co_names  # it calls that of the class above


def _below(kind: type) -> Iterator[type]:
    below: list[type] = type.__subclasses__(kind)
    for each in below:
        yield each
        yield from _below(each)


KNOWN_NAMESPACES = frozenset({"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional"})
"""Where everything that is heavy has a formula, here or in torch, and what only talks to other processes."""

Formula = Callable[..., int]


class FlopCounter(torch_api.TorchDispatchMode):  # type: ignore[misc]
    """Counts what goes by between `enter` and `leave`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.unknown: dict[str, None] = {}
        """Kernels without a formula: with them `flops` is the least it can be."""
        self.given_up = ""
        """Where it ended before its time, what the rest was."""
        self._off = False
        self._on = False
        self._compiled_code = CompiledCodeWatch(self._give_up)
        self._tensors = FragileTensors(self._stepped_aside)

    def enter(self) -> bool:
        """Begin; False where somebody else counts or changes operations already."""
        torch_api.need("current_dispatch_mode", "HigherOrderOperator")
        if torch_api.current_dispatch_mode() is not None:
            return False
        self._compiled_code.put_on()
        self._tensors.put_on()
        self._on = True
        self.__enter__()
        return True

    def leave(self) -> None:
        """End. A mode that the script has left on top of this one keeps it where it is; it does nothing then."""
        self._off = True
        self._compiled_code.take_off()
        self._tensors.take_off()
        if self._on and torch_api.current_dispatch_mode() is self:
            self.__exit__(None, None, None)
            self._on = False

    @contextmanager
    def _stepped_aside(self) -> Iterator[None]:
        """Not on, where it is on top."""
        on_top = torch_api.current_dispatch_mode() is self
        if on_top:
            self.__exit__(None, None, None)
        try:
            yield
        finally:
            if on_top and not self._off:
                self.__enter__()

    def _give_up(self, is_compiled: bool) -> None:
        self.given_up = "compiled" if is_compiled else "traced"
        self.leave()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        if self._off:
            return outputs
        packet = func if isinstance(func, torch_api.HigherOrderOperator) else func._overloadpacket
        own = _OWN.get(packet)
        if own is not None:
            self.flops += own(*args)
        elif packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=outputs)
        elif func.namespace not in KNOWN_NAMESPACES:
            self.unknown[str(packet)] = None
        return outputs


def _attention(query: Any, key: Any, value: Any, *_: Any) -> int:
    """Scores and their product with the values; with grouped queries too, which older formulas refuse."""
    batch, heads, length, size = query.shape
    return int(2 * batch * heads * length * key.shape[-2] * (size + value.shape[-1]))


def _recurrent_layer(inputs: Any, weight_of_inputs: Any, weight_of_state: Any, *_: Any) -> int:
    return int(2 * inputs.shape[0] * inputs.shape[1] * (weight_of_inputs.numel() + weight_of_state.numel()))


def _recurrent_layers(inputs: Any, weights: Any, *_: Any) -> int:
    """Each step of each sample meets each weight once; packed sequences have one row for each of these already."""
    steps = inputs.numel() // inputs.shape[-1]
    return int(2 * steps * sum(each.numel() for each in weights if each.dim() == 2))


def _grouped_product(left: Any, right: Any, *_: Any) -> int:
    """Each row meets the matrix of its own group."""
    return int(2 * left.numel() * right.shape[-1])


_aten = torch.ops.aten
_OWN: dict[Any, Formula] = {
    getattr(_aten, name): formula
    for formula, names in (
        (
            _attention,
            (
                "_scaled_dot_product_flash_attention",
                "_scaled_dot_product_flash_attention_for_cpu",
                "_scaled_dot_product_efficient_attention",
                "_scaled_dot_product_cudnn_attention",
                "_scaled_dot_product_fused_attention_overrideable",
                "_scaled_dot_product_attention_math_for_mps",
            ),
        ),
        (_recurrent_layer, ("mkldnn_rnn_layer",)),
        (_recurrent_layers, ("_cudnn_rnn", "miopen_rnn")),
        (_grouped_product, ("_grouped_mm",)),
    )
    for name in names
    if hasattr(_aten, name)  # not every torch has all of them
}

COMPILED = "a part of it is compiled, and compiled code does not report its operations"
UNFIT = {
    "FullyShardedDataParallel": "its parameters are split over processes",
    "FSDPModule": "its parameters are split over processes",
    "DeepSpeedEngine": "its parameters may be split over processes",
    "DataParallel": "its batch is split over devices",
    "ScriptModule": "it was scripted",
}
"""Classes whose operations are not all to be seen from here."""


def refusal(root: Module) -> str:
    """Why the operations of this model are not counted; empty: nothing speaks against it."""
    for module in Module.modules(root):
        unfit = next((UNFIT[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in UNFIT), None)
        if unfit is not None:
            return unfit
    how_much = compiled(root)
    if how_much != "no":
        return COMPILED.replace("a part of it", "it") if how_much == "whole" else COMPILED
    parameters = parameters_in(root)
    if any(map(is_lazy, parameters)):
        return "some of its parameters are uninitialised"
    if any(hasattr(each, mark) for each in parameters for mark in ("full_tensor", "_sharded_size", "ds_id")):
        return "its parameters are split over processes"
    if too_deep(root):
        return "its modules are nested almost as deeply as Python's recursion limit allows"
    return ""
