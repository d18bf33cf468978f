"""Reads a pickle that holds numbers, texts, lists and dictionaries, and runs nothing of it.

In: bytes. Out: numbers, texts, lists, dictionaries; NumPy's scalars and arrays of numbers as numbers and lists.
Guarantees: Python's own unpickler is not used, nothing is imported, no object is made and no function called, whatever
the file asks for: what it names is a name here, and only the few that NumPy's numbers are made of are understood.
Anything else is refused with what it was. Time and memory are bounded.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MOST_OPERATIONS = 4_000_000
MOST_VALUES = 5_000_000
_LONGEST_TEXT = 5000
_LONGEST_SCALAR = 8
_DEEPEST = 50
_NUMBERS = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
_VALUES = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
    | {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_SCALAR = frozenset({"numpy.core.multiarray scalar", "numpy._core.multiarray scalar"})
_EMPTY_ARRAY = frozenset({"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"})
_FROM_BUFFER = frozenset({"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"})
_ENCODE, _TYPE, _ARRAY = "_codecs encode", "numpy dtype", "numpy ndarray"
_KNOWN = _SCALAR | _EMPTY_ARRAY | _FROM_BUFFER | {_ENCODE, _TYPE, _ARRAY}


class NotPlainError(ValueError):
    """The pickle holds something else; the message says what."""


@dataclass(frozen=True, slots=True)
class _Name:
    """Something that the pickle asks for by name; nobody gets it."""

    text: str


@dataclass(slots=True)
class _Type:
    """The type of NumPy's numbers."""

    code: str
    order: str = "<"

    @property
    def real(self) -> np.dtype[np.generic]:
        return np.dtype(self.order + self.code)


@dataclass(slots=True)
class _Array:
    """An array; its numbers come after it."""

    numbers: object = None


class _Mark:
    """The place on the stack from which the next list, dictionary or tuple takes its items."""


def plain_value(content: bytes) -> object:
    """What a pickle holds; `NotPlainError` where that is more than numbers, texts, lists and dictionaries."""
    machine = _Machine()
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if count > MOST_OPERATIONS:
                raise NotPlainError(f"more than {MOST_OPERATIONS:,} values")
            machine.do(operation.name, argument)
        return _Finished().of(machine.pop())
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise NotPlainError("damaged data") from error
    except NotPlainError:
        raise
    except ValueError as error:  # it is cut off, or no pickle
        raise NotPlainError("damaged data") from error


class _Machine:
    """Does what a pickle says, on a stack of plain values."""

    def __init__(self) -> None:
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}
        self._left = MOST_VALUES * _LONGEST_SCALAR
        self._calls: dict[str, Callable[[object], object]] = {
            "POP": lambda _: self._stack.pop(),
            "POP_MARK": lambda _: self._behind_mark(),
            "DUP": lambda _: self._stack.append(self._stack[-1]),
            "MARK": lambda _: self._stack.append(_Mark()),
            "MEMOIZE": lambda _: self._memo.update({len(self._memo): self._stack[-1]}),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "EMPTY_TUPLE": lambda _: self._stack.append(()),
            "LIST": lambda _: self._stack.append(self._behind_mark()),
            "TUPLE": lambda _: self._stack.append(tuple(self._behind_mark())),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "DICT": lambda _: self._put_in(self._behind_mark(), {}),
            "APPEND": lambda _: self._append([self._stack.pop()]),
            "APPENDS": lambda _: self._append(self._behind_mark()),
            "SETITEM": lambda _: self._put_in([self._stack.pop(-2), self._stack.pop()], self._stack.pop()),
            "SETITEMS": lambda _: self._put_in(self._behind_mark(), self._stack.pop()),
            "GLOBAL": lambda name: self._name(str(name)),
            "STACK_GLOBAL": lambda _: self._name(f"{self._stack.pop(-2)} {self._stack.pop()}"),
            "REDUCE": lambda _: self._reduce(self._stack.pop(-2), self._stack.pop()),
            "BUILD": lambda _: self._build(self._stack[-2], self._stack.pop()),
        }

    def do(self, name: str, argument: object) -> None:
        """One operation."""
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[int(str(argument))] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self._stack.append(self._memo[int(str(argument))])
        elif name in self._calls:
            self._calls[name](argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise NotPlainError(f"an object ({name.lower()})")

    def pop(self) -> object:
        """What is on top of the stack."""
        return self._stack.pop()

    def _behind_mark(self) -> list[object]:
        place = len(self._stack) - 1
        while not isinstance(self._stack[place], _Mark):
            place -= 1
            if place < 0:
                raise IndexError
        items = self._stack[place + 1 :]
        del self._stack[place:]
        return items

    def _tuple(self, size: int) -> None:
        items = tuple(self._stack[-size:])
        if len(items) < size:
            raise IndexError
        del self._stack[-size:]
        self._stack.append(items)

    def _append(self, items: list[object]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError
        target.extend(items)

    def _put_in(self, items: list[object], target: object) -> None:
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float):
                raise NotPlainError("a dictionary whose keys are not strings")
            target[key if isinstance(key, str) else str(key)] = value
        self._stack.append(target)

    def _name(self, text: str) -> None:
        if text not in _KNOWN:
            raise NotPlainError(text.replace(" ", "."))
        self._stack.append(_Name(text))

    def _reduce(self, name: object, arguments: object) -> None:
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise TypeError
        self._stack.append(self._made(name.text, arguments))

    def _build(self, target: object, state: object) -> None:
        if not isinstance(state, tuple):
            raise TypeError
        if isinstance(target, _Type):
            target.order = {"<": "<", ">": ">", "|": "<"}[str(state[1])]
        elif isinstance(target, _Array):
            _, shape, kind, _, numbers = state
            target.numbers = numbers if isinstance(numbers, list) else self._numbers(numbers, kind, shape)
        else:
            raise TypeError

    def _made(self, name: str, arguments: tuple[object, ...]) -> object:
        """What NumPy would have made of these arguments, in plain values."""
        if name == _TYPE:
            code = str(arguments[0])[:_LONGEST_SCALAR]
            if code.lstrip("<>|=") not in _NUMBERS:
                raise NotPlainError(f"NumPy's type {code}")
            return _Type(code.lstrip("<>|="), ">" if code.startswith(">") else "<")
        if name == _ENCODE:
            if arguments[1:] not in ((), ("latin1",), ("latin-1",)):
                raise TypeError
            return self._raw(arguments[0])
        if name in _SCALAR:
            kind, content = arguments
            (value,) = self._numbers(content, kind, ())
            return value
        if name in _EMPTY_ARRAY:
            return _Array()
        if name in _FROM_BUFFER:
            content, kind, shape, _ = arguments
            return _Array(self._numbers(content, kind, shape))
        raise TypeError  # a type that is called

    def _numbers(self, content: object, kind: object, shape: object) -> list[object]:
        """The numbers in an array's bytes; an array of arrays as lists of lists."""
        if not isinstance(kind, _Type) or not isinstance(shape, tuple):
            raise TypeError
        sizes = [size for size in shape if isinstance(size, int) and size >= 0]
        values = np.frombuffer(self._raw(content), kind.real)
        if len(sizes) != len(shape) or math.prod(sizes) != len(values) or not len(values):
            return []
        nested: list[object] = values.astype(np.float64).reshape(sizes or [1]).tolist()
        return nested

    def _raw(self, content: object) -> bytes:
        """Bytes, of which a pickle may name the same ones again and again: so they are counted."""
        if not isinstance(content, str | bytes | bytearray):
            raise TypeError
        self._left -= len(content)
        if self._left < 0:
            raise NotPlainError(f"more than {MOST_VALUES:,} values")
        return content.encode("latin-1") if isinstance(content, str) else bytes(content)


class _Finished:
    """Takes the machine's own words out of a value; one that holds itself, over and over, is refused."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def of(self, value: object, depth: int = 0) -> object:
        """The value in numbers, texts, lists and dictionaries alone."""
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            raise NotPlainError("endlessly nested lists")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, _Array):
            return self.of(value.numbers, depth + 1)
        if isinstance(value, list | tuple):
            return [self.of(each, depth + 1) for each in value]
        if isinstance(value, dict):
            return {key: self.of(each, depth + 1) for key, each in value.items()}
        if isinstance(value, bytes | bytearray):
            return value[:_LONGEST_TEXT].decode("utf-8", "replace")
        raise NotPlainError(value.text.replace(" ", ".") if isinstance(value, _Name) else "damaged data")
