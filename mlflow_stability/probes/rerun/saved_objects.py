"""Saves what one object holds, and puts it back.

Guarantees: afterwards the same objects are in the same places. Only methods of Python's own types are called, never
those that a class of the script overrides; except for the hash of a key.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MemberDescriptorType, NoneType
from typing import Any

import torch
from torch import Tensor

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
    """Return a copy of what is in a container: a dictionary or a list."""
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
    """Return the values that a class holds for all of its objects; methods and properties are none."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith(("__", "_abc_")) and not hasattr(type(value), "__get__")
    }


def methods_of(kind: type) -> dict[str, FunctionType]:
    """Return the methods that a class defines, without special ones."""
    return {
        name: value for name, value in vars(kind).items() if type(value) is FunctionType and not name.startswith("__")
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
    """Save the values of a NumPy array."""
    copy = array.copy()

    def write(_before: Any) -> None:
        array[...] = copy

    return _save(lambda: [array.tobytes()], write)


def _save(read: Callable[[], Any], write: Callable[[Any], None]) -> SavedObject:
    return SavedObject(read, write, read())


def _flat(values: Any) -> list[Any]:
    return [*values, *values.values()] if isinstance(values, dict) else values


def _is_same(one: Any, other: Any) -> bool:
    """Whether two are the same object, or values that are interchangeable."""
    return one is other or (type(one) is type(other) and type(one) in _COMPARED_BY_VALUE and bool(one == other))
