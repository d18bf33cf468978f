"""Notes what an object holds, and puts it back.

In: a container, the attributes of an object or a class, a variable, a generator of random numbers, an array. Out: a
note of it, which says when it puts back whether anything was changed. Guarantees: the same objects are in the same
places again; methods of the script's own classes are not called.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from operator import is_
from types import CellType
from typing import Any, Protocol

import torch
from torch import Tensor

KINDS: tuple[Any, ...] = (OrderedDict, dict, list, set, deque, bytearray, tuple, frozenset)
_NOTHING = object()
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class SavedObject(Protocol):
    """What one object held."""

    def restore(self) -> bool:
        """Have it hold that again; whether it held anything else."""
        ...


class SavedContainer:
    """A list, a dictionary, a set or a row, with what was in it."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._kind = kind_of(container)
        self._before = _contents(self._kind, container)

    def restore(self) -> bool:
        """Have it hold that again."""
        container, kind, before = self._container, self._kind, self._before
        now = _contents(kind, container)
        if len(now) == len(before) and all(map(is_, now, before)):
            return False
        changed = len(now) != len(before) or not all(map(_is_same, now, before))
        if kind is list or kind is bytearray:
            kind.__setitem__(container, slice(None), before)
            return changed
        kind.clear(container)
        if issubclass(kind, dict):
            half = len(before) // 2
            for key, value in zip(before[:half], before[half:], strict=True):
                kind.__setitem__(container, key, value)
        elif kind is set:
            set.update(container, before)
        else:
            deque.extend(container, before)
        return changed


class SavedAttributes:
    """The attributes of an object, as its dictionary has them."""

    def __init__(self, attributes: dict[str, Any], left_out: frozenset[str] = frozenset()) -> None:
        self._now, self._left_out = attributes, left_out
        self._before = {name: value for name, value in attributes.items() if name not in left_out}

    @property
    def values(self) -> dict[str, Any]:
        """What was noted."""
        return self._before

    def restore(self) -> bool:
        """Give it those attributes again."""
        now, changed = self._now, False
        for name in [each for each in now if each not in self._left_out and each not in self._before]:
            del now[name]
            changed = True
        for name, value in self._before.items():
            there = now.get(name, _NOTHING)
            if there is not value:
                changed |= not _is_same(there, value)
                now[name] = value
        return changed


class SavedVariable:
    """One place that holds an object: a variable of a module or of a function, a slot, an attribute of a class."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], clear: Callable[[], None]) -> None:
        self._read, self._write, self._clear = read, write, clear
        self.before = self._value()
        """What was in it."""

    def restore(self) -> bool:
        """Have it hold that again."""
        now = self._value()
        if now is self.before:
            return False
        if self.before is _NOTHING:
            self._clear()
        else:
            self._write(self.before)
        return not _is_same(now, self.before)

    def _value(self) -> Any:
        try:
            return self._read()
        except (AttributeError, ValueError, KeyError):  # there is nothing in it
            return _NOTHING


def saved_cell(cell: CellType) -> SavedVariable:
    """A variable of an outer function."""
    return SavedVariable(
        lambda: cell.cell_contents, lambda value: setattr(cell, "cell_contents", value), lambda: _empty(cell)
    )


def saved_variable(variables: dict[str, Any], name: str) -> SavedVariable:
    """A variable of a module."""
    return SavedVariable(
        lambda: variables[name],
        lambda value: variables.__setitem__(name, value),
        lambda: variables.__delitem__(name),
    )


def saved_slot(owner: Any, slot: Any) -> SavedVariable:
    """A slot of an object."""
    return SavedVariable(
        lambda: slot.__get__(owner), lambda value: slot.__set__(owner, value), lambda: slot.__delete__(owner)
    )


def saved_class(owner: type, name: str) -> SavedVariable:
    """An attribute of a class itself."""
    return SavedVariable(
        lambda: vars(owner)[name],
        lambda value: type.__setattr__(owner, name, value),
        lambda: type.__delattr__(owner, name),
    )


class SavedGenerator:
    """A generator of random numbers of the script's own."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any], same: Callable[[Any, Any], bool]) -> None:
        self._read, self._write, self._same = read, write, same
        self._before = read()

    def restore(self) -> bool:
        """Have it draw the same numbers again."""
        if self._same(self._read(), self._before):
            return False
        self._write(self._before)
        return True


class SavedArray:
    """An array of numpy."""

    def __init__(self, array: Any) -> None:
        self._array, self._before = array, array.copy()

    def restore(self) -> bool:
        """Have it hold the same numbers again."""
        if self._array.shape == self._before.shape and self._array.tobytes() == self._before.tobytes():
            return False
        self._array[...] = self._before
        return True


class SavedTensor:
    """A tensor, of which a script can exchange the memory, and whether it wants a gradient; not its numbers."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._data = tensor.detach() if tensor.is_inference() else tensor.data
        self._wants = tensor.requires_grad

    def restore(self) -> bool:
        """Give it its own memory again."""
        tensor, data, changed = self._tensor, self._data, False
        if tensor.is_leaf and tensor.requires_grad != self._wants:
            tensor.requires_grad_(self._wants)
            changed = True
        if _memory(tensor) != _memory(data) or tensor.shape != data.shape or tensor.dtype != data.dtype:
            tensor.data = data
            changed = True
        return changed


def _memory(tensor: Tensor) -> int | None:
    """Where its numbers are; None: its kind has no memory of its own."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return None


def kind_of(container: Any) -> Any:
    """The kind of Python's own whose methods reach what is really in it, whatever its class has made of them."""
    return next((each for each in KINDS if issubclass(type(container), each)), None)


def _contents(kind: Any, container: Any) -> list[Any]:
    """What is in it; of a dictionary first the keys, then the values."""
    return [*kind.keys(container), *kind.values(container)] if issubclass(kind, dict) else [*kind.__iter__(container)]


def _is_same(one: Any, other: Any) -> bool:
    """Whether two are the same object, or the same plain value."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _SIMPLE:
        return bool(one == other)
    return kind is tuple and len(one) == len(other) and all(map(_is_same, one, other))


def _empty(cell: CellType) -> None:
    del cell.cell_contents
