"""Saves the state that a forward pass may write, and puts it back; or says why that is not possible.

The state is what attributes lead to, at any depth: from the modules, their hooks and the arguments of the call, through
containers and through objects that consist of attributes alone. Where an attribute leads to anything else (an iterator,
a file, a lock, an object of a C library, a function with variables of its own), `refusal` says so, and the pass must
not be run. Values in tensors are not saved here: `WrittenTensors` copies the tensors that are written to.

Of global variables of the script, numbers and texts are saved. Left out is what a forward pass has no
reason to write: immutable values, classes, functions, and what installed libraries keep in their modules and classes.
"""

from __future__ import annotations

import enum
import functools
import logging
import pathlib
import re
import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as torch_module

from mlflow_stability.probes.rerun.saved_objects import (
    SavedObject,
    attributes_of,
    class_attributes_of,
    container_kind,
    contents_of,
    methods_of,
    save_array,
    save_attributes,
    save_container,
    save_globals,
    save_tensor,
    slots_of,
)

MAX_VALUES = 200_000
"""Values in attributes and containers that are looked at; these take about 0.1 s."""
MAX_ARRAY_BYTES = 64 * 2**20
"""NumPy arrays are copied up to this size in total."""

_OURS = __name__.partition(".")[0]
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_NOT_OF_SCRIPT = (*_LIBRARIES, f"{pathlib.Path(__file__).parents[2]}/", "<frozen")
_NEVER_WRITTEN = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, type, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.qscheme),
    *(types.ModuleType, types.GenericAlias, types.UnionType, types.MappingProxyType, BaseException, torch.finfo),
    *(pathlib.PurePath, re.Pattern, logging.Logger, torch.iinfo, weakref.WeakSet, torch.jit.ScriptFunction),
    torch.Generator,  # `WrittenTensors` sees whoever draws from it
    type(functools.lru_cache(len)),  # the results that it keeps are those that the next call would compute
)
_NEVER_WRITTEN_MODULES = (
    *("datetime", "decimal", "fractions", "uuid", "zoneinfo", "typing", "inspect", "operator", "numpy.dtypes"),
    *("torch._ops", "torch._library", "torch._C._functions", "torch._dynamo", "torch.fx", "torch.storage"),
    "torch.utils.hooks",
)
"""Objects of these modules are immutable, or handles and graphs that a forward pass only reads."""
_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_TORCH = frozenset(vars(Module())) - {"training"} | {"_compiled_call_impl"}
_OF_TRAINER = frozenset({"_trainer", "_fabric"})
"""The forward pass of a `LightningModule` reads its trainer, or logs to it, which `kept` prevents."""


class WritableState:
    """What a call of a model may write."""

    def __init__(self, model: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], with_hooks: bool) -> None:
        """`with_hooks`: hooks of the script will run, too; those of torch always do."""
        self.refusal = ""
        """Why the state cannot be put back; empty if it can."""
        self.lightning_modules: list[Module] = []
        self._with_hooks = with_hooks
        self._saved: list[SavedObject] = []
        self._seen: dict[int, Any] = {}
        self._values = self._array_bytes = 0
        self._next: deque[tuple[Any, str]] = deque([(model, type(model).__name__)])
        self._next += [(value, f"args[{number}]") for number, value in enumerate(args)]
        self._next += [(value, name) for name, value in kwargs.items()]
        for namespace in _script_namespaces():
            self._saved.append(save_globals(namespace))
        if with_hooks:
            self._visit_hooks(vars(torch_module), "_global", "every module")
        while self._next and not self.refusal:
            self._visit(*self._next.popleft())
            if self._values > MAX_VALUES:
                self.refusal = f"it holds more than {MAX_VALUES:,} values"

    def restore(self) -> bool:
        """Put everything back and return whether anything had changed."""
        try:
            return any([saved.restore() for saved in self._saved])  # noqa: C419 # all of them, not up to the first
        except BaseException:  # Ctrl-C came in the middle
            for saved in self._saved:
                saved.restore()
            raise

    def _visit(self, value: Any, path: str) -> None:
        kind = type(value)
        self._values += 1
        if _is_never_written(kind) or id(value) in self._seen:
            return
        self._seen[id(value)] = value  # a reference, so that no other object gets its id
        if issubclass(kind, types.MethodType | types.BuiltinMethodType | types.MethodWrapperType):
            self._next += [(value.__self__, path), (getattr(value, "__func__", None), path)]
        elif issubclass(kind, weakref.ref):
            self._next.append((weakref.ref.__call__(value), path))
        elif issubclass(kind, Tensor):
            self._saved.append(save_tensor(value))
        elif not self._visit_array(value, kind, path):
            self._visit_object(value, kind, path)

    def _visit_object(self, value: Any, kind: type, path: str) -> None:
        if container_kind(kind) is not None:
            self._visit_container(value, path)
        elif not _consists_of_attributes(kind):
            self.refusal = f"{path} is of type {kind.__name__}, whose state cannot be put back"
            return
        if issubclass(kind, types.FunctionType) and _is_closure_of_script(value):
            self.refusal = f"{path} is a function with variables of its own (a closure)"
        if issubclass(kind, functools.partial):
            self._next += [(value.func, path), (value.args, path), (value.keywords, path)]
        self._saved.append(save_attributes(value))
        left_out = self._visit_module(value, kind, path) if issubclass(kind, Module) else frozenset()
        self._next += [(held, f"{path}.{name}") for name, held in attributes_of(value).items() if name not in left_out]
        for base in kind.__mro__:
            if id(base) not in self._seen and _is_class_of_script(base):  # it may count for all of its objects
                self._seen[id(base)] = base
                self._saved.append(save_attributes(base))
                members = class_attributes_of(base) | methods_of(base)
                self._next += [(member, f"{base.__name__}.{name}") for name, member in members.items()]

    def _visit_container(self, container: Any, path: str) -> None:
        contents = contents_of(container)
        self._values += len(contents)
        if not isinstance(container, tuple | frozenset):
            self._saved.append(save_container(container))
        if isinstance(contents, dict):
            self._next += [(key, path) for key in contents if type(key) is not str]
        items = contents.items() if isinstance(contents, dict) else enumerate(contents)
        self._next += [(held, f"{path}[{key!r}]" if type(key) in (int, str) else path) for key, held in items]

    def _visit_module(self, module: Module, kind: type, path: str) -> frozenset[str]:
        """Visit what torch keeps in a module; returns which attributes need no other visit."""
        for table in _TABLES:
            members = vars(module)[table]
            self._saved.append(save_container(members))
            self._next += [(member, f"{path}.{name}") for name, member in members.items()]
        self._visit_hooks(vars(module), "", path)
        if all(base.__name__ != "LightningModule" for base in kind.__mro__):
            return _OF_TORCH
        self.lightning_modules.append(module)
        return _OF_TORCH | _OF_TRAINER

    def _visit_hooks(self, tables: Mapping[str, Any], prefix: str, path: str) -> None:
        for table in _HOOKS:
            for hook in list((tables.get(prefix + table) or {}).values()):
                if not self._with_hooks and not is_of_torch(hook):
                    continue
                function = hook.func if isinstance(hook, functools.partial) else hook
                # Most hooks write something down; only their code knows where.
                if type(function) is types.FunctionType and _is_of_script(function.__code__.co_filename):
                    self.refusal = f"a hook of {path} is a function of the script, which may write anything"
                self._next.append((hook, f"a hook of {path}"))

    def _visit_array(self, value: Any, kind: type, path: str) -> bool:
        numpy: Any = sys.modules.get("numpy")
        if numpy is None or not issubclass(kind, numpy.ndarray | numpy.generic | numpy.ufunc):
            return False
        if issubclass(kind, numpy.ndarray) and value.flags.writeable:
            self._array_bytes += value.nbytes
            if value.dtype.hasobject or self._array_bytes > MAX_ARRAY_BYTES:
                self.refusal = f"{path} is a NumPy array of {value.nbytes:,} bytes and type {value.dtype}"
            else:
                self._saved.append(save_array(value))
        return True


def is_of_torch(hook: Any) -> bool:
    """Whether a hook is one of torch's own, such as that of a spectral norm."""
    return str(getattr(hook, "__module__", "")).startswith("torch.")


def _is_never_written(kind: type) -> bool:
    if issubclass(kind, _NEVER_WRITTEN) or "__members__" in vars(kind):  # the latter: enumerations of torch in C++
        return True
    module = f"{kind.__module__}."
    if module.startswith(f"{_OURS}."):
        return not issubclass(kind, Module)
    return module.startswith(tuple(f"{name}." for name in _NEVER_WRITTEN_MODULES)) and not issubclass(kind, Module)


def _consists_of_attributes(kind: type) -> bool:
    """Whether an object has no room for more than its attributes, as an object of a C library has."""
    if issubclass(kind, torch.jit.ScriptModule):
        return False
    if issubclass(kind, Module | functools.partial | types.SimpleNamespace | types.FunctionType):
        return True
    pointers = int(kind.__dictoffset__ > 0) + int(kind.__weakrefoffset__ > 0) + len(slots_of(kind))
    return kind.__itemsize__ == 0 and kind.__basicsize__ <= object.__basicsize__ + 8 * pointers


def _is_class_of_script(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return module is None or kind.__module__ == "__main__" or (file is not None and _is_of_script(file))


def _script_namespaces() -> list[dict[str, Any]]:
    """The global variables of the modules that the user wrote."""
    found = []
    for name, module in list(sys.modules.items()):
        variables = vars(module) if type(module) is types.ModuleType else {}
        file = variables.get("__file__")
        if name == "__main__" or (isinstance(file, str) and _is_of_script(file)):
            found.append(variables)
    return found


def _is_closure_of_script(function: types.FunctionType) -> bool:
    """Whether a function may count or collect in variables of the function of the script that it was made in."""
    code = function.__code__
    # `super()` makes a variable `__class__`; the module `self` is saved itself.
    return not {"__class__", "self"}.issuperset(code.co_freevars) and _is_of_script(code.co_filename)


def _is_of_script(file: str) -> bool:
    """Whether code was written by the user, and not installed."""
    return not (file.startswith(_NOT_OF_SCRIPT) or "/site-packages/" in file or "/dist-packages/" in file)
