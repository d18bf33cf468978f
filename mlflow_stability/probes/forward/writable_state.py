"""Saves the state that a forward pass may write, and restores it; or says why that is not possible.

The state is what attributes lead to, at any depth, from the modules, their hooks and the arguments of the call. Where
one leads to anything but containers and objects that consist of attributes (an iterator, a lock, an object of a C
library, a closure), `refusal` says so, and the pass must not be run. Tensors are copied by `WrittenTensors`. Of global
variables of the script, numbers and texts are saved; what installed libraries keep is left out.

Guarantees: afterwards the same objects are in the same places. Only methods of Python's own types are called, never
those that a class of the script overrides; except for the hash of a key.
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
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MemberDescriptorType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as torch_module

MAX_VALUES = 200_000  # in attributes and containers; these take about 0.1 s
MAX_ARRAY_BYTES = 64 * 2**20  # of all copies of NumPy arrays

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
# Objects of these modules are immutable, or handles and graphs that a forward pass only reads.
_NEVER_WRITTEN_MODULES = (
    *("datetime", "decimal", "fractions", "uuid", "zoneinfo", "typing", "inspect", "operator", "numpy.dtypes"),
    *("torch._ops", "torch._library", "torch._C._functions", "torch._dynamo", "torch.fx", "torch.storage"),
    "torch.utils.hooks",
)
_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_TORCH = frozenset(vars(Module())) - {"training"} | {"_compiled_call_impl"}
# The forward pass of a `LightningModule` reads its trainer, or logs to it, which `kept` prevents.
_OF_TRAINER = frozenset({"_trainer", "_fabric"})


class WritableState:
    def __init__(self, model: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], with_hooks: bool) -> None:
        self.refusal = ""  # why the state cannot be restored; empty if it can
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
            contents = contents_of(value)
            self._values += len(contents)
            if not isinstance(value, tuple | frozenset):
                self._saved.append(save_container(value))
            if isinstance(contents, dict):
                self._next += [(key, path) for key in contents if type(key) is not str]
            items = contents.items() if isinstance(contents, dict) else enumerate(contents)
            self._next += [(held, f"{path}[{key!r}]" if type(key) in (int, str) else path) for key, held in items]
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
                functions = {name: held for name, held in vars(base).items() if type(held) is FunctionType}
                methods = {name: held for name, held in functions.items() if not name.startswith("__")}
                members = class_attributes_of(base) | methods
                self._next += [(member, f"{base.__name__}.{name}") for name, member in members.items()]

    def _visit_module(self, module: Module, kind: type, path: str) -> frozenset[str]:
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
    namespaces = []
    for name, module in list(sys.modules.items()):
        variables = vars(module) if type(module) is types.ModuleType else {}
        file = variables.get("__file__")
        if name == "__main__" or (isinstance(file, str) and _is_of_script(file)):
            namespaces.append(variables)
    return namespaces


def _is_closure_of_script(function: types.FunctionType) -> bool:
    code = function.__code__
    # `super()` makes a variable `__class__`; the module `self` is saved itself.
    return not {"__class__", "self"}.issuperset(code.co_freevars) and _is_of_script(code.co_filename)


def _is_of_script(file: str) -> bool:
    return not (file.startswith(_NOT_OF_SCRIPT) or "/site-packages/" in file or "/dist-packages/" in file)


_CONTAINERS: tuple[Any, ...] = (OrderedDict, dict, list, set, deque, tuple, frozenset)
_FILL: dict[Any, Callable[[Any, Any], None]] = {list: list.extend, set: set.update, deque: deque.extend}
_COMPARED_BY_VALUE = (NoneType, bool, int, str, bytes, torch.dtype, torch.Size)
_PLAIN = (NoneType, bool, int, float, complex, str, bytes)
_UNSET = object()


@dataclass(frozen=True, slots=True)
class SavedObject:
    """What one object held: a list of values, or values by name."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    before: Any

    def restore(self) -> bool:
        """Put the values back where they differ, and return whether they did."""
        now, before = _flat(self.read()), _flat(self.before)
        if len(now) == len(before) and all(map(_is_same, now, before)):
            return False  # writing the same again could make compiled code compile once more
        self.write(self.before)
        return True


def container_kind(kind: type) -> Any:
    """Return Python's own container type that a class is or inherits from, or None."""
    return next((container for container in _CONTAINERS if issubclass(kind, container)), None)


def contents_of(container: Any) -> Any:
    kind = container_kind(type(container))
    return dict(kind.items(container)) if issubclass(kind, dict) else [*kind.__iter__(container)]


def save_container(container: Any) -> SavedObject:
    """Save the contents of a list, dictionary, set or deque, in their order."""
    kind = container_kind(type(container))

    def write(before: Any) -> None:
        kind.clear(container)
        if kind in _FILL:
            _FILL[kind](container, before)
        else:
            for key, value in before.items():
                kind.__setitem__(container, key, value)

    return _save(lambda: contents_of(container), write)


def attributes_of(owner: Any) -> dict[str, Any]:
    """Return what is in the ``__dict__`` and the ``__slots__`` of an object, without calling a property."""
    attributes = dict(object.__getattribute__(owner, "__dict__")) if type(owner).__dictoffset__ else {}
    for name, slot in slots_of(type(owner)).items():
        try:
            attributes[name] = slot.__get__(owner)
        except AttributeError:  # the slot is empty
            continue
    return attributes


def slots_of(kind: type) -> dict[str, MemberDescriptorType]:
    """Return the ``__slots__`` of a class, with those that it inherits."""
    bases = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    return {slot.__name__: slot for base in bases for slot in base.values() if isinstance(slot, MemberDescriptorType)}


def class_attributes_of(kind: type) -> dict[str, Any]:
    """Return the values that a class holds for all of its objects, without methods and properties."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith(("__", "_abc_")) and not hasattr(type(value), "__get__")
    }


def save_attributes(owner: Any) -> SavedObject:
    """Save the attributes of an object or of a class."""
    is_class = isinstance(owner, type)
    put, delete = (type.__setattr__, type.__delattr__) if is_class else (object.__setattr__, object.__delattr__)

    def read() -> dict[str, Any]:
        return class_attributes_of(owner) if is_class else attributes_of(owner)

    def write(before: dict[str, Any]) -> None:
        now = read()
        for name in now.keys() - before.keys():
            delete(owner, name)
        for name, value in before.items():
            if now.get(name, _UNSET) is not value:
                put(owner, name, value)

    return _save(read, write)


def save_globals(namespace: dict[str, Any]) -> SavedObject:
    """Save the numbers and texts that a module of the script has as global variables.

    Containers are left alone: another thread may be at work on them, such as one that prepares batches.
    """

    def read() -> dict[str, Any]:
        return {name: value for name, value in namespace.copy().items() if type(value) in _PLAIN and name[:2] != "__"}

    return _save(read, namespace.update)


def save_tensor(tensor: Tensor) -> SavedObject:
    """Save the memory, shape, dtype and ``requires_grad`` of a tensor; `WrittenTensors` saves its values."""
    data = tensor.detach() if tensor.is_inference() else tensor.data

    def read() -> list[Any]:
        try:
            address: int | None = tensor.data_ptr()
        except RuntimeError:  # this kind of tensor has no memory of its own
            address = None
        return [tensor.is_leaf and tensor.requires_grad, address, tensor.shape, tensor.dtype]

    def write(before: list[Any]) -> None:
        now = read()
        if now[1:] != before[1:]:
            tensor.data = data
        if tensor.is_leaf:
            tensor.requires_grad_(before[0])

    return _save(read, write)


def save_array(array: Any) -> SavedObject:
    copy = array.copy()

    def write(_before: Any) -> None:
        array[...] = copy

    return _save(lambda: [array.tobytes()], write)


def _save(read: Callable[[], Any], write: Callable[[Any], None]) -> SavedObject:
    return SavedObject(read, write, read())


def _flat(values: Any) -> list[Any]:
    return [*values, *values.values()] if isinstance(values, dict) else values


def _is_same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and type(left) in _COMPARED_BY_VALUE and bool(left == right))
