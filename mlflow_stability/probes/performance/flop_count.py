"""Floating point operations of a training, counted in a few of its own forward passes.

Counted are matrix products, convolutions, attention (in full, causal or not) and recurrent layers, once for each new
shape of a batch; further shapes are taken in proportion to the nearest one in size. A backward pass takes twice what
the forward pass takes; the half of it that is for weights is counted for those that are trained.

Guarantees: every operation runs as it would have, and none twice; operations without a formula are named; counting
ends before anything is traced or compiled. What cannot be counted is not, and `reason` says why. Of a batch, the shape
and type of the first tensor are read: integers in two dimensions are tokens; anything else has one sample a row.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import flop_registry

from mlflow_stability.probes.forward.compiled_models import CompiledCodeWatch, compiled, too_deep
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.guarded_hooks import HookHandles
from mlflow_stability.probes.model_discovery import parameters_in, unwrapped

MAX_DEPTH = 2  # levels of lists and dictionaries in which tensors are looked for
TOKEN_TYPES = (torch.int64, torch.int32)  # indices of an embedding; bytes are usually pictures

ShapeKey: TypeAlias = tuple[tuple[int, ...], ...]  # batches of the same shapes take the same FLOPs


@dataclass(frozen=True, slots=True)
class BatchShape:
    samples: int
    tokens: int | None  # none where the model does not read tokens
    elements: int  # the size of the tensor that was counted


def batch_shape(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BatchShape | None:
    """Return the sizes of the batch in these arguments, or None if they have no tensor with rows."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.dim():
        first = next((tensor for tensor in tensors_in(args, kwargs) if tensor.dim()), None)
    if first is None:
        return None
    if first.is_nested:
        return BatchShape(first.size(0), None, 0)
    return _of(first.shape, first.dtype)


@lru_cache(maxsize=64)
def _of(shape: torch.Size, dtype: torch.dtype) -> BatchShape:
    elements = shape.numel()
    tokens = elements if len(shape) == 2 and dtype in TOKEN_TYPES else None
    return BatchShape(shape[0], tokens, elements)


def shape_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ShapeKey:
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and not args[0].is_nested:
        return (args[0].shape,)
    return tuple([tuple(tensor.shape) for tensor in tensors_in(args, kwargs) if not tensor.is_nested])


def tensors_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors in the arguments of a model, positional arguments first."""
    yield from _tensors_within((*args, *kwargs.values()), MAX_DEPTH + 1)


def _tensors_within(values: Iterable[Any], depth: int) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        # The rows of a packed sequence, which is a tuple, are steps of samples.
        elif depth > 1 and not isinstance(value, torch.nn.utils.rnn.PackedSequence):
            inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
            yield from _tensors_within(inner, depth - 1)


MAX_DESCRIBED_TENSORS = 8


def batch_words(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Describe types and shapes of the first tensors: ``int64[8, 128], int64[8]``."""
    tensors = list(islice(tensors_in(args, kwargs), MAX_DESCRIBED_TENSORS + 1))
    words = [_word(tensor) for tensor in tensors[:MAX_DESCRIBED_TENSORS]]
    return ", ".join([*words, "…"] if len(tensors) > MAX_DESCRIBED_TENSORS else words)


def _word(tensor: Tensor) -> str:
    # Rows of a nested tensor have different lengths, and it has no `shape`.
    shape = f"{tensor.size(0)} rows" if tensor.is_nested else ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"


class FragileTensors:
    """Suspends a mode while objects of some tensor subclasses are made.

    Under a `TorchDispatchMode` the constructor of a tensor subclass raises a RuntimeError, because the empty tensor
    that it starts from is a plain `torch.Tensor` for good.
    """

    def __init__(self, suspended: Callable[[], AbstractContextManager[None]]) -> None:
        self._suspended = suspended
        self._handles = HookHandles()

    def put_on(self) -> None:
        """Patch the constructors of all `Tensor` subclasses, and of those that are defined from now on."""
        for kind in _subclasses(Tensor):
            self._watch(kind)
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
        self._handles.remove()

    def _watch(self, kind: type) -> None:
        if _is_fragile(kind):
            self._handles.patch(kind, "__new__", self._make)

    def _make(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._suspended():
            return original(*args, **kwargs)


def _is_fragile(kind: type) -> bool:
    maker = next(cls for cls in kind.__mro__ if "__new__" in vars(cls))
    if maker in Tensor.__mro__:
        return True
    if maker is not kind:  # the class that makes it is patched
        return False
    if maker.__module__.startswith("torch."):  # these are not made from an empty tensor
        return False
    made_by = vars(maker)["__new__"]
    code = getattr(inspect.unwrap(getattr(made_by, "__func__", made_by)), "__code__", None)
    return code is None or "__new__" in code.co_names  # it calls that of the class above


def _subclasses(kind: type) -> Iterator[type]:
    children: list[type] = type.__subclasses__(kind)
    for child in children:
        yield child
        yield from _subclasses(child)


# Heavy operations of these have a formula, here or in torch; or they only communicate.
KNOWN_NAMESPACES = frozenset({"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional"})

Formula = Callable[..., int]


class FlopCounter(torch_api.TorchDispatchMode):  # type: ignore[misc]
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.unknown: dict[str, None] = {}  # kernels without a formula: with them `flops` is a lower bound
        self.given_up = ""  # why counting ended early: "compiled" or "traced"
        self._off = False
        self._on = False
        self._compiled_code = CompiledCodeWatch(self._give_up)
        self._tensors = FragileTensors(self._suspended)

    def enter(self) -> bool:
        """Begin; return False if another mode counts or changes operations already."""
        torch_api.need("current_dispatch_mode", "HigherOrderOperator")
        if torch_api.current_dispatch_mode() is not None:
            return False
        self._compiled_code.put_on()
        self._tensors.put_on()
        self._on = True
        self.__enter__()
        return True

    def leave(self) -> None:
        """End. Below a mode that the script has left on the stack this one stays, and does nothing."""
        self._off = True
        self._compiled_code.take_off()
        self._tensors.take_off()
        if self._on and torch_api.current_dispatch_mode() is self:
            self.__exit__(None, None, None)
            self._on = False

    @contextmanager
    def _suspended(self) -> Iterator[None]:
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


# With grouped queries too, which older formulas of torch refuse.
def _attention(query: Any, key: Any, value: Any, *_: Any) -> int:
    batch, heads, length, size = query.shape
    return int(2 * batch * heads * length * key.shape[-2] * (size + value.shape[-1]))


def _recurrent_layer(inputs: Any, weight_of_inputs: Any, weight_of_state: Any, *_: Any) -> int:
    return int(2 * inputs.shape[0] * inputs.shape[1] * (weight_of_inputs.numel() + weight_of_state.numel()))


# Each step of each sample meets each weight once; packed sequences have one row for each of these already.
def _recurrent_layers(inputs: Any, weights: Any, *_: Any) -> int:
    steps = inputs.numel() // inputs.shape[-1]
    return int(2 * steps * sum(weight.numel() for weight in weights if weight.dim() == 2))


def _grouped_product(left: Any, right: Any, *_: Any) -> int:
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
# Classes some of whose operations are not seen here.
UNFIT = {
    "FullyShardedDataParallel": "its parameters are split over processes",
    "FSDPModule": "its parameters are split over processes",
    "DeepSpeedEngine": "its parameters may be split over processes",
    "DataParallel": "its batch is split over devices",
    "ScriptModule": "it was scripted",
}


def refusal(root: Module) -> str:
    """Return why the operations of this model cannot be counted, or an empty string."""
    for module in Module.modules(root):
        unfit = next((UNFIT[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in UNFIT), None)
        if unfit is not None:
            return unfit
    compiled_part = compiled(root)
    if compiled_part != "no":
        return COMPILED.replace("a part of it", "it") if compiled_part == "whole" else COMPILED
    parameters = parameters_in(root)
    if any(map(is_lazy, parameters)):
        return "some of its parameters are uninitialised"
    if any(hasattr(parameter, mark) for parameter in parameters for mark in ("full_tensor", "_sharded_size", "ds_id")):
        return "its parameters are split over processes"
    if too_deep(root):
        return "its modules are nested almost as deeply as Python's recursion limit allows"
    return ""


MAX_COUNTED_SHAPES = 4  # batches that are padded to the longest have a new shape each time

_Key: TypeAlias = tuple[int, ShapeKey]


@dataclass(frozen=True, slots=True)
class _Counting:
    key: _Key
    root: Module
    counter: FlopCounter
    elements: int


@dataclass(frozen=True, slots=True)
class _Counted:
    flops: float
    elements: int


class FlopTotals:
    def __init__(self) -> None:
        self.flops = 0.0  # since the last `take`
        self.reason = ""  # why operations are not counted; empty while they are
        self.unknown: tuple[str, ...] = ()  # kernels without a formula: with them numbers are lower bounds
        self.device: torch.device | None = None
        self.dtype: torch.dtype | None = None  # type that the model computes in
        self._counted: dict[_Key, _Counted] = {}
        self._now: _Counting | None = None
        self.is_counting = False  # a forward pass is being counted now
        self._waiting: Counter[_Key] = Counter()  # forward passes since the last `take` that are not in `flops`

    def forward_began(
        self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any], shape: BatchShape, may_count: bool
    ) -> float | None:
        """Add a forward pass of training, or begin to count it.

        Returns the operations of each further pass of this shape, or None if they are not counted yet.
        """
        if self.is_counting:
            self.give_up()
        if self.reason:
            return 0.0
        key = id(root), shape_key(args, kwargs)
        counted = self._counted.get(key)
        if counted is not None:
            self.flops += counted.flops
            return counted.flops
        if len(self._counted) < MAX_COUNTED_SHAPES:
            self._waiting[key] += 1
            if may_count:
                self._begin(key, root, shape)
            return None
        near = [counted for (model, _), counted in self._counted.items() if model == key[0] and counted.elements]
        if near and shape.elements:
            nearest = min(near, key=lambda counted: abs(counted.elements - shape.elements))
            self.flops += nearest.flops * shape.elements / nearest.elements
        else:
            self._waiting[key] += 1
        return None

    def forward_ended(self) -> None:
        now = self._now
        self.give_up()
        if now is None:
            return
        if now.counter.given_up:
            traced = now.counter.given_up == "traced"
            self.reason = "it is traced during a forward pass" if traced else COMPILED
            return
        if not now.counter.flops:
            self.reason = "no operation with a known FLOP formula was seen"
            return
        model = unwrapped(now.root)
        self.unknown = tuple(dict.fromkeys((*self.unknown, *now.counter.unknown)))
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in parameters_in(model)]
        trained = sum(size for size, is_trained in sizes if is_trained) / max(1, sum(size for size, _ in sizes))
        counted = self._counted[now.key] = _Counted(now.counter.flops * (2 + trained), now.elements)
        self.flops += counted.flops * self._waiting.pop(now.key, 0)

    def give_up(self) -> None:
        """End counting, if it goes on: the forward pass was interrupted or is no part of training."""
        if self._now is not None:
            self._now.counter.leave()
            self._now, self.is_counting = None, False

    def take(self) -> float | None:
        """Return the operations since the last call, or None if some are unknown."""
        flops, self.flops = self.flops, 0.0
        complete = not self._waiting
        self._waiting.clear()
        return flops if complete and flops and not self.reason else None

    def _begin(self, key: _Key, root: Module, shape: BatchShape) -> None:
        self.reason = refusal(root)
        if self.reason:
            return
        parameters = parameters_in(root)
        self.device = parameters[0].device if parameters else torch.device("cpu")
        autocast = torch.is_autocast_enabled(self.device.type)
        self.dtype = torch.get_autocast_dtype(self.device.type) if autocast else _main_dtype(root)
        # Before it begins, so that it is ended whatever happens, Ctrl-C in between included.
        self.is_counting = True
        self._now = _Counting(key, root, FlopCounter(), shape.elements)
        if not self._now.counter.enter():
            self.give_up()


def _main_dtype(model: Module) -> torch.dtype:
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters_in(model):
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
