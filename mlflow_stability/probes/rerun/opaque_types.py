"""Says of a kind of object whether it can change, and whether what it holds can be seen from Python.

In: a class. Out: that it never changes; or in words what it is, where it holds something that cannot be noted and put
back: an iterator, a file, a lock, an object of a library in C. Guarantees: classes are asked, never objects; nothing of
the script is called.
"""

from __future__ import annotations

import functools
import io
import logging
import socket
import sys
import sysconfig
import types
import weakref
from enum import Enum
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import Module

PLAIN: Final = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented)),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.finfo, torch.iinfo),
        *(types.CodeType, types.ModuleType, types.GenericAlias, types.UnionType, types.MappingProxyType),
        *(types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType),
        *(types.MethodDescriptorType, types.ClassMethodDescriptorType, weakref.WeakSet),
    }
)
"""What never changes."""
_PLAIN_BASES = (int, float, complex, str, bytes, Enum, BaseException, logging.Logger, logging.LoggerAdapter)
_PLAIN_MODULES: Final = frozenset(
    {
        *("datetime", "decimal", "fractions", "pathlib", "re", "uuid", "operator", "inspect", "typing", "zoneinfo"),
        *("torch._ops", "torch.fx", "torch.utils.hooks", "torch._C._functions", "torch._library", "ast", "abc"),
        *("torch.storage", "tokenize", "string", "numpy.dtypes"),
    }
)
_LIBRARIES: Final = tuple(
    dict.fromkeys(f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
)
_BY_WORDS: Final[tuple[tuple[type, str], ...]] = (
    (types.GeneratorType, "a generator"),
    (types.CoroutineType, "a coroutine"),
    (types.AsyncGeneratorType, "a generator"),
    (io.IOBase, "a file"),
    (socket.socket, "a socket"),
)
OURS: Final = "mlflow_stability"
_OURSELVES: Final = f"{Path(__file__).parents[2]}/"


def is_library(file: str) -> bool:
    """Whether code comes with Python or was installed: such code is taken to keep nothing in globals of its own."""
    return (
        file.startswith((*_LIBRARIES, "<frozen", _OURSELVES)) or "/site-packages/" in file or "/dist-packages/" in file
    )


def is_of_script(kind: type) -> bool:
    """Whether a class was written by the user: any that was not installed."""
    module = str(kind.__module__)
    if module.partition(".")[0] in ("builtins", "torch", "numpy", OURS):
        return False
    for value in vars(kind).values():
        code = getattr(value, "__code__", None)
        if isinstance(code, types.CodeType) and code.co_filename != "<string>":
            return not is_library(code.co_filename)
    return module == "__main__" or not is_library(_file_of(module))


def is_plain(kind: type) -> bool:
    """Whether its objects never change, or hold nothing of a training."""
    if kind in PLAIN or issubclass(kind, _PLAIN_BASES):
        return True
    if issubclass(kind, torch.jit.ScriptFunction) or "__members__" in vars(kind):  # enumerations of torch in C++
        return True
    module = str(kind.__module__)
    return module in _PLAIN_MODULES or module.partition(".")[0] == OURS or module.startswith(("torch.fx.", "numpy.dt"))


def what_is_hidden(kind: type) -> str:
    """What an object of this kind is, where it holds what cannot be seen; empty: its attributes are all of it."""
    for known, words in _BY_WORDS:
        if issubclass(kind, known):
            return words
    if issubclass(kind, torch.jit.ScriptModule):
        return "a scripted module"
    if str(kind.__module__) in ("_thread", "threading", "multiprocessing.synchronize") and "ock" in kind.__name__:
        return "a lock"
    if not _is_seen_whole(kind):
        return "an iterator" if hasattr(kind, "__next__") else f"{_article(kind.__name__)} {kind.__name__}"
    return ""


def _is_seen_whole(kind: type) -> bool:
    """Whether attributes and slots are all that there is room for in an object, as `copyreg` asks it, too."""
    if issubclass(kind, (Module, functools.partial, types.SimpleNamespace)):
        return True
    words = int(kind.__dictoffset__ > 0) + int(kind.__weakrefoffset__ > 0) + len(slots_of(kind))
    return kind.__itemsize__ == 0 and kind.__basicsize__ <= object.__basicsize__ + 8 * words


def slots_of(kind: type) -> list[Any]:
    """The descriptors of the slots of a class and of those it comes from."""
    return [
        value
        for each in kind.__mro__
        if "__slots__" in vars(each)
        for value in vars(each).values()
        if isinstance(value, types.MemberDescriptorType)
    ]


def _file_of(module: str) -> str:
    found = sys.modules.get(module)
    return str(getattr(found, "__file__", None) or "<frozen")


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeiou" else "a"
