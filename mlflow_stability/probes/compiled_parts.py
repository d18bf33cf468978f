"""Says how much of what a model runs is compiled: of this model, whatever else in the process is.

In: a model. Out: ``whole``, ``in part``, ``functions only``, ``no``. Promised: nothing is called; what a library
compiles when it is imported counts only if a forward pass of this model names it, or was seen to run it.

Modules say it themselves. Functions are followed from the `forward` of each module: variables of its Python module,
closures, attributes of the module, and methods of its class by name. What is called in another way, out of a
dictionary say, is seen when it runs: whoever looks into forward passes then steps back, and notes it here.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch.nn import Module

from mlflow_stability.probes import torch_api
from mlflow_stability.probes.code_names import names_in
from mlflow_stability.probes.module_names import WRAPPERS

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
                for name in names_in(function) - named:
                    named.add(name)
                    waiting += methods.get(name, ())
    return False


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
    names = names_in(function)
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
