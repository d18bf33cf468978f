"""Notes everything that a call of a model could change, so that it can be put back.

In: a model and what it is called with. Out: notes; or a refusal in words, "Model.stream is a generator". Guarantees:
what can be reached from the modules, from the arguments, and from the functions that run, is noted: attributes and what
is in them at any depth, variables of closures and those of a module that the script's own functions name, generators of
random numbers. Numbers in tensors are not: what writes to them is seen while it runs.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as torch_module

from mlflow_stability.probes.rerun.object_state import (
    SavedArray,
    SavedAttributes,
    SavedContainer,
    SavedGenerator,
    SavedObject,
    SavedTensor,
    kind_of,
    saved_slot,
)
from mlflow_stability.probes.rerun.opaque_types import is_plain, slots_of, what_is_hidden
from mlflow_stability.probes.rerun.script_variables import Found, ScriptCode

MOST_OBJECTS = 200_000
"""So many objects are looked at."""
MOST_ITEMS = 1_000_000
"""So much is in their containers, all in all."""
MOST_ARRAY_BYTES = 64 * 2**20
"""So much of numpy's arrays is copied."""
_TORCHS_OWN = frozenset(vars(Module())) - {"training"} | {"_compiled_call_impl"}
_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_TRAINERS = frozenset({"_trainer", "_fabric"})
_TRAINERS_WORK = frozenset({"log", "log_dict", "trainer", "fabric", "logger", "optimizers", "manual_backward"})
_CACHED = type(functools.lru_cache(len))


class ReachableState:
    """What a call of a model could change."""

    def __init__(self, model: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], with_hooks: bool) -> None:
        """`with_hooks`: those of the script will run, too."""
        self.refusal = ""
        """Why it cannot all be put back; empty: it can."""
        self._with_hooks = with_hooks
        self._code = ScriptCode()
        self._notes: list[SavedObject] = self._code.notes
        self._seen: dict[int, Any] = {}
        self._room = MOST_ARRAY_BYTES
        self._items = 0
        self._has_trainer = False
        self._next: deque[tuple[Any, str]] = deque([(model, type(model).__name__)])
        self._next += [(each, f"args[{number}]") for number, each in enumerate(args)]
        self._next += [(each, name) for name, each in kwargs.items()]
        if with_hooks:
            self._hooks(vars(torch_module), "_global", "everything")
        self._walk()

    @property
    def remembers(self) -> bool:
        """Whether the script's code writes down anything that another call may read, or asks for the time."""
        return self._code.remembers

    def restore(self) -> bool:
        """Everything is as it was; whether anything was not."""
        try:
            return any([each.restore() for each in self._notes])  # noqa: C419 # all of them, not only up to the first
        except BaseException:  # Ctrl-C, say: not half of it
            for each in self._notes:
                each.restore()
            raise

    def _walk(self) -> None:
        while self._next and not self.refusal:
            self._visit(*self._next.popleft())
            self.refusal = self.refusal or self._code.refusal
            if not self._next:
                self._next += self._code.mentioned()
            if len(self._seen) > MOST_OBJECTS:
                self.refusal = f"it holds more than {MOST_OBJECTS:,} objects"
        if self._has_trainer and self._code.names & _TRAINERS_WORK:
            self.refusal = self.refusal or "it may write to its trainer"
        self._next.clear()

    def _visit(self, value: Any, path: str) -> None:
        kind = type(value)
        if is_plain(kind) or id(value) in self._seen:
            return
        self._seen[id(value)] = value  # held, so that no other object gets its identity meanwhile
        if issubclass(kind, type):
            self._next += self._code.of_class(value)
        elif kind is types.FunctionType:
            self._next += self._code.of_function(value)
        elif kind is types.MethodType:
            self._next += [(value.__self__, path), (value.__func__, path)]
        elif issubclass(kind, types.BuiltinFunctionType | types.MethodWrapperType):
            self._next.append((value.__self__, path))
        elif issubclass(kind, weakref.ref):
            self._next.append((weakref.ref.__call__(value), path))
        elif kind is _CACHED:
            self._next.append((value.__wrapped__, path))
        elif issubclass(kind, staticmethod | classmethod):
            self._next.append((value.__func__, path))
        elif issubclass(kind, Tensor):
            self._notes.append(SavedTensor(value))
        elif not self._dice(value, kind, path) and not self._array(value, kind, path):
            self._object(value, kind, path)

    def _object(self, value: Any, kind: type, path: str) -> None:
        container = kind_of(value)
        hidden = "" if container is not None else what_is_hidden(kind)
        if hidden:
            self.refusal = f"{path} is {hidden}"
            return
        if container is not None:
            self._items += container.__len__(value)
            if self._items > MOST_ITEMS:
                self.refusal = f"it holds more than {MOST_ITEMS:,} things"
                return
            if not issubclass(kind, tuple | frozenset):
                self._notes.append(SavedContainer(value))
            self._next += _inside(container, value, path)
        if issubclass(kind, functools.partial):
            self._next += [(value.func, path), (value.args, path), (value.keywords, path)]
        if issubclass(kind, Module):
            self._module(value, kind, path)
        else:
            self._attributes(value, path)
            for slot in slots_of(kind):
                note = saved_slot(value, slot)
                self._notes.append(note)
                self._next.append((note.before, f"{path}.{slot.__name__}"))
        self._next += self._code.of_class(kind)

    def _attributes(self, value: Any, path: str, left_out: frozenset[str] = frozenset()) -> None:
        with contextlib.suppress(AttributeError):  # it has slots alone
            note = SavedAttributes(object.__getattribute__(value, "__dict__"), left_out)
            self._notes.append(note)
            self._next += [(each, f"{path}.{name}") for name, each in note.values.items() if not is_plain(type(each))]

    def _module(self, module: Module, kind: type, path: str) -> None:
        inside, kinds = vars(module), {each.__name__ for each in kind.__mro__}
        if "OptimizedModule" not in kinds:  # what else is in one is the compiler's
            trained = "LightningModule" in kinds
            self._has_trainer |= trained
            self._attributes(module, path, _TORCHS_OWN | _TRAINERS if trained else _TORCHS_OWN)
        for table in _TABLES:
            held = inside.get(table)
            if isinstance(held, dict):
                self._notes.append(SavedContainer(held))
                self._next += [(each, f"{path}.{name}") for name, each in held.items() if each is not None]
        self._hooks(inside, "", path)

    def _hooks(self, tables: Mapping[str, Any], prefix: str, path: str) -> None:
        for table in _HOOKS:
            for hook in list((tables.get(prefix + table) or {}).values()):
                if self._with_hooks or str(getattr(hook, "__module__", "")).startswith("torch."):
                    self._next.append((hook, f"a hook of {path}"))

    def _dice(self, value: Any, kind: type, path: str) -> bool:
        numpy: Any = sys.modules.get("numpy.random")
        if issubclass(kind, torch.Generator):
            self._notes.append(SavedGenerator(value.get_state, value.set_state, torch.equal))
        elif issubclass(kind, random.SystemRandom):
            pass
        elif issubclass(kind, random.Random):
            self._notes.append(SavedGenerator(value.getstate, value.setstate, _is_equal))
        elif numpy is not None and issubclass(kind, numpy.RandomState):
            self._notes.append(SavedGenerator(value.get_state, value.set_state, _is_equal))
        elif numpy is not None and issubclass(kind, numpy.Generator):
            self._next.append((value.bit_generator, path))
        elif numpy is not None and issubclass(kind, numpy.BitGenerator):
            self._notes.append(
                SavedGenerator(lambda: value.state, lambda state: setattr(value, "state", state), _is_equal)
            )
        else:
            return False
        return True

    def _array(self, value: Any, kind: type, path: str) -> bool:
        numpy: Any = sys.modules.get("numpy")
        if numpy is None or not issubclass(kind, numpy.ndarray | numpy.generic | numpy.ufunc | numpy.dtype):
            return False
        if issubclass(kind, numpy.ndarray) and value.flags.writeable:
            self._room -= value.nbytes
            if value.dtype.hasobject:
                self.refusal = f"{path} is an array of objects"
            elif self._room < 0:
                self.refusal = f"{path} is an array of {value.nbytes:,} bytes"
            else:
                self._notes.append(SavedArray(value))
        return True


def _inside(kind: Any, value: Any, path: str) -> Found:
    """What is in a container, and where."""
    if not issubclass(kind, dict):
        return [(each, f"{path}[{at}]") for at, each in enumerate(kind.__iter__(value)) if not is_plain(type(each))]
    found = [(each, path) for each in kind.keys(value) if not is_plain(type(each))]
    for key, each in kind.items(value):
        if not is_plain(type(each)):
            found.append((each, f"{path}[{key!r}]" if type(key) in (str, int) else path))
    return found


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two states are the same: numbers, arrays and names in rows and dictionaries."""
    if isinstance(one, dict):
        return all(_is_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple):
        return all(map(_is_equal, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)
