"""State kept by the script's functions and classes: closures, defaults, module variables, class attributes.

In: functions and classes that a call of a model may run. Out: saved values, and what to inspect next; which names a
function's code uses, and whether it writes to anything that outlives the call. Guarantees: nothing is run. Methods
are inspected where code that may run mentions their name; installed libraries are taken to keep nothing in globals.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from torch.nn import Module

from mlflow_stability.probes.rerun.object_state import (
    SavedAttributes,
    SavedObject,
    saved_cell,
    saved_class,
    saved_variable,
)
from mlflow_stability.probes.rerun.opaque_types import OURS, is_library, is_of_script

OUTSIDE = frozenset(
    {
        *("subprocess", "socket", "shutil", "requests", "urllib", "http", "sqlite3", "multiprocessing", "threading"),
        *("mlflow", "wandb", "tensorboard", "tensorboardX", "comet_ml", "neptune", "clearml"),
    }
)
"""Modules through which code reaches what no note puts back."""
_REACHING = frozenset({"open", "input"})
_OF_VARIABLES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_WRITES = frozenset(dis.opmap[each] for each in ("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR") if each in dis.opmap)
_CLOCKS = frozenset({"time", "perf_counter", "monotonic", "urandom", "now", "uuid4", "environ"})


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those that are defined in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


def names_in(function: FunctionType) -> set[str]:
    """What it mentions by name: variables of its module, attributes and methods alike."""
    return {name for code in codes_in(function.__code__) for name in code.co_names}


def variables_in(function: FunctionType) -> set[str]:
    """The variables of its module that it reads or writes."""
    return {
        str(each.argval)
        for code in codes_in(function.__code__)
        for each in dis.get_instructions(code)
        if each.opname in _OF_VARIABLES
    }


def reaches_outside(function: FunctionType, variables: set[str]) -> str:
    """What it calls that goes beyond this process's memory; empty: nothing that is known of."""
    for name in sorted(variables & _REACHING):
        if function.__globals__.get(name, getattr(builtins, name)) is getattr(builtins, name):
            return f"{name}()"
    for name in sorted(variables & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in OUTSIDE:
            return value.__name__
    return ""


def remembers(function: FunctionType, names: set[str]) -> bool:
    """Whether it writes attributes or global variables, or asks a clock: another call may go another way."""
    if names & _CLOCKS:
        return True
    return any(not _WRITES.isdisjoint(code.co_code[::2]) for code in codes_in(function.__code__))


Found: TypeAlias = list[tuple[Any, str]]
"""Objects, and what each is called."""
_ALWAYS_RUN = frozenset({"forward", "backward", "setup_context", "jvp", "vmap"})
_NEVER_RUN = frozenset(
    {"__init__", "__new__", "__repr__", "__del__", "__init_subclass__", "__reduce__", "__set_name__"}
)
_LIVELY = (types.FunctionType, types.MethodType, functools.partial, Module)


class ScriptCode:
    """The functions and classes that were met so far."""

    def __init__(self) -> None:
        self.notes: list[SavedObject] = []
        self.names = set(_ALWAYS_RUN)
        """What any of them mentions."""
        self.remembers = False
        """Whether one writes down anything that another call may read, or asks for the time."""
        self.refusal = ""
        """What one of them does that nothing undoes."""
        self._classes: dict[type, None] = {}
        self._looked: set[int] = set()

    def of_function(self, function: types.FunctionType) -> Found:
        """What a function keeps."""
        self._looked.add(id(function))
        if str(function.__module__).partition(".")[0] == OURS:
            return []
        original = vars(function).get("_torchdynamo_orig_callable")
        if original is not None:
            return [(original, function.__name__)]
        title = function.__qualname__.rpartition("<locals>.")[2]
        installed = is_library(function.__code__.co_filename)
        attributes = SavedAttributes(vars(function))
        self.notes.append(attributes)
        found: Found = [(each, f"{title}.{name}") for name, each in attributes.values.items()]
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            note = saved_cell(cell)
            if not installed:
                self.notes.append(note)
            if not installed or isinstance(note.before, _LIVELY):
                found.append((note.before, f"{variable}, which {title} uses,"))
        if not installed:
            defaults = function.__defaults__, function.__kwdefaults__
            found += [(each, f"a default of {title}") for each in defaults if each is not None]
            found += self._variables(function, title)
        return found

    def of_class(self, kind: type) -> Found:
        """What a class and those it comes from keep for all of their objects."""
        found: Found = []
        for each in kind.__mro__:
            if each in self._classes or not is_of_script(each):
                continue
            self._classes[each] = None
            for name, value in list(vars(each).items()):
                descriptor = isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
                if not descriptor and not name.startswith(("__", "_abc_")) and not _functions_of(value):
                    self.notes.append(saved_class(each, name))
                    found.append((value, f"{each.__name__}.{name}"))
        return found

    def mentioned(self) -> Found:
        """Methods of the classes that were mentioned since this was asked last."""
        return [
            (function, f"{kind.__name__}.{name}")
            for kind in self._classes
            for name, value in list(vars(kind).items())
            if name in self.names or (name.startswith("__") and name.endswith("__") and name not in _NEVER_RUN)
            for function in _functions_of(value)
            if id(function) not in self._looked
        ]

    def _variables(self, function: types.FunctionType, title: str) -> Found:
        """What it names of its own module, and of other modules of the script."""
        names, variables = names_in(function), variables_in(function)
        self.names |= names
        self.remembers |= remembers(function, names)
        outside = reaches_outside(function, variables)
        if outside:
            self.refusal = self.refusal or f"{title} uses {outside}"
        found: Found = []
        modules = [(function.__globals__, variables)]
        for inside, mentioned in modules:
            for name in sorted(mentioned & inside.keys()):
                value = inside[name]
                if isinstance(value, types.ModuleType):
                    if _is_of_script(value) and not any(vars(value) is each for each, _ in modules):
                        modules.append((vars(value), names))
                    continue
                self.notes.append(saved_variable(inside, name))
                found.append((value, f"{name}, which {title} uses,"))
        return found


def _is_of_script(module: types.ModuleType) -> bool:
    """Whether a module was written by the user."""
    file = getattr(module, "__file__", None)
    return file is not None and module.__name__.partition(".")[0] != OURS and not is_library(file)


def _functions_of(value: Any) -> list[types.FunctionType]:
    """The functions that an attribute of a class stands for."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        return [each for each in (value.fget, value.fset) if isinstance(each, types.FunctionType)]
    elif isinstance(value, functools.cached_property):
        value = value.func
    return [value] if isinstance(value, types.FunctionType) else []
