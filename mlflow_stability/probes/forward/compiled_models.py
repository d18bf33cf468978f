"""Which parts of a model are compiled, and removal of hooks before compiled code runs or is made.

In: a model; what removes hooks and modes. Out: ``whole``, ``in part``, ``functions only`` or ``no``. Guarantees:
hooks are removed before torch enters a compiled region, compiles or traces, so that they never enter compiled code or
its guards; after `take_off` torch is as it was; nothing of the script is called.

`torch.compile` asks dynamo at each call, before anything else: the check is there. Compiled modules are known by
themselves, compiled functions by what the `forward` of each module names. Others are seen when they run, and
remembered. `too_deep` says whether modules are nested so deeply that hooks could exceed Python's recursion limit.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch.nn import Module

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.hook_handles import HookHandles
from mlflow_stability.probes.objects.module_names import WRAPPERS

_REGION = "set_eval_frame"
"""What begins a compiled region."""
_COMPILING = ("compile", "dynamo_optimize")
_TRACING = ("make_traced_module", "function_from_trace", "function_from_trace_with_dict", "graph_by_tracing")
"""Likewise, what begins to compile and to trace."""

OnCompiled = Callable[[bool], None]
"""Takes whether it is for the compiler; else for a trace."""


class CompiledCodeWatch:
    """On during one pass. Several are on at once: torch is patched for the first, and put right after the last."""

    _on: list[CompiledCodeWatch] = []  # noqa: RUF012 # one list for all of them
    _handles = HookHandles()

    def __init__(self, on_compiled: OnCompiled) -> None:
        self._on_compiled = on_compiled

    def put_on(self) -> None:
        """Begin."""
        if not self._on:
            if torch_api.is_dynamo_loaded():
                torch_api.need(_REGION)  # compiled code could not be seen
            self._handles.patch_symbol(_REGION, _before_region)
            for each in _COMPILING:
                self._handles.patch_symbol(each, _before_compiling)
            for each in _TRACING:
                self._handles.patch_symbol(each, _before_tracing)
        if self not in self._on:
            self._on.append(self)

    def take_off(self) -> None:
        """End; once more does no harm."""
        if self in self._on:
            self._on.remove(self)
        if not self._on:
            self._handles.remove()

    @classmethod
    def announce_compiled(cls, compiled: bool) -> None:
        """Have everybody step back, the last one first."""
        for each in reversed(cls._on[:]):
            each._on_compiled(compiled)


def _before_region(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    caller = sys._getframe(2)  # this one, the patch, and who asks for dynamo
    context = caller.f_locals.get("self", sys)
    if getattr(context, "callback", sys) is not None:  # `torch.compiler.disable` asks with None
        CompiledCodeWatch.announce_compiled(True)
    return original(*args, **kwargs)


def _before_compiling(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    CompiledCodeWatch.announce_compiled(True)
    return original(*args, **kwargs)


def _before_tracing(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    CompiledCodeWatch.announce_compiled(False)
    return original(*args, **kwargs)


MOST_FUNCTIONS = 5_000
"""So many functions of a model are followed."""
_FLEX = "torch.nn.attention.flex_attention"
_ran_compiled: weakref.WeakSet[Module] = weakref.WeakSet()


def ran_compiled(model: Module) -> None:
    """Note that compiled code was entered, or made, in a forward pass of this model."""
    _ran_compiled.add(model)


def compiled(model: Module) -> str:
    """How much of it is."""
    inner = model
    while True:
        if is_compiled_module(inner):
            return "whole"
        names = inner._modules.keys() & WRAPPERS
        wrapped = inner._modules[names.pop()] if len(inner._modules) == 1 and names else None
        if wrapped is None:
            break
        inner = wrapped
    if any(map(is_compiled_module, Module.modules(inner))):
        return "in part"
    return "functions only" if model in _ran_compiled or _names_compiled_function(inner) else "no"


def is_compiled_module(module: Module) -> bool:
    """Whether this module itself was given to the compiler."""
    if vars(module).get("_compiled_call_impl") is not None:
        return True
    return any(kind.__name__ == "OptimizedModule" for kind in type(module).__mro__)


def is_compiled_function(function: FunctionType) -> bool:
    """Whether it is what `torch.compile` gave back, or compiles itself; what is kept from the compiler is neither."""
    marks = vars(function)
    if "_torchdynamo_orig_callable" in marks:
        return not marks.get("_torchdynamo_disable")
    return function.__module__ == _FLEX and function.__name__ == "flex_attention"


def _names_compiled_function(root: Module) -> bool:
    if not torch_api.is_dynamo_loaded():
        return False
    modules = list(Module.modules(root))
    methods = _methods_of({kind: None for each in modules for kind in type(each).__mro__})
    waiting: deque[Any] = deque(methods.get("forward", ()))
    waiting += [value for each in modules for value in vars(each).values()]
    seen: set[int] = set()
    named = {"forward"}
    while waiting and len(seen) < MOST_FUNCTIONS:
        for function in _functions_in(waiting.popleft()):
            if id(function) in seen:
                continue
            seen.add(id(function))
            if is_compiled_function(function):
                return True
            if not _is_torchs(function):
                waiting += _named_by(function)
                for name in _names_in(function.__code__) - named:
                    named.add(name)
                    waiting += methods.get(name, ())
    return False


def _names_in(code: CodeType) -> set[str]:
    """What a function, and those that are defined in it, mention by name: variables and attributes alike."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _methods_of(kinds: Iterable[type]) -> dict[str, list[Any]]:
    """Methods by name, of all classes that are not torch's."""
    found: dict[str, list[Any]] = {}
    for kind in kinds:
        if kind is not object and not kind.__module__.startswith("torch."):
            for name, value in list(vars(kind).items()):
                found.setdefault(name, []).append(value)
    return found


def _named_by(function: FunctionType) -> Iterator[Any]:
    """What it names of its Python module and of those that this one knows, and what it encloses."""
    names = _names_in(function.__code__)
    inside = function.__globals__
    for value in [inside[name] for name in names & inside.keys()]:
        if isinstance(value, ModuleType):
            if not value.__name__.startswith("torch"):
                yield from [vars(value)[name] for name in names & vars(value).keys()]
        else:
            yield value
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """The functions that a value stands for."""
    kind = type(value)
    if kind is FunctionType:
        yield value
    elif kind is MethodType or kind in (staticmethod, classmethod):
        yield from _functions_in(value.__func__)
    elif kind is functools.partial:
        yield from _functions_in(value.func)
    elif kind is property:
        yield from [each for each in (value.fget, value.fset) if type(each) is FunctionType]
    elif kind in (list, tuple):
        yield from [each for each in value[:MOST_FUNCTIONS] if type(each) is FunctionType]
    elif kind is dict:
        yield from [each for each in list(value.values()) if type(each) is FunctionType]


def _is_torchs(function: FunctionType) -> bool:
    return str(function.__module__).partition(".")[0] == "torch"


FRAMES = 8
"""So many frames of Python a level of modules may take: three are torch's, hooks add one, checkpointing four."""
ROOM = 150
"""So many frames are left for what is called inside of the innermost module, by the script, by torch and by us."""


def too_deep(root: Module) -> bool:
    """Whether a call of this model from here could come near the limit."""
    room = sys.getrecursionlimit() - ROOM - depth_of(root) * FRAMES
    frame: FrameType | None = sys._getframe()
    while frame is not None and room >= 0:
        frame = frame.f_back
        room -= 1
    return room < 0


def depth_of(root: Module) -> int:
    """How many modules stand in each other, the root one of them."""
    return max(name.count(".") + 2 if name else 1 for name, _ in Module.named_modules(root))
