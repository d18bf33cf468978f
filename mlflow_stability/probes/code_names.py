"""Reads off a function which names its code uses, and whether it writes to anything that outlives the call.

In: the code of a function. Out: names of variables, attributes and methods that it mentions, those of the functions
inside it among them. Promised: nothing is run.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

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
