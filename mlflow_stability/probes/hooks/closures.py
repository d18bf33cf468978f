"""Stands in for the closure of an optimizer's step, so that its end can be heard.

Guarantees: only what is a closure is replaced, and what replaces it answers as the closure does: attributes that the
optimizer or the script reads from it or sets on it are the closure's own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, cast

from torch.optim import Optimizer

Around = Callable[[bool], AbstractContextManager[None]]
"""What an evaluation runs in; told whether it is the first of its step."""


def takes_closure(optimizer: Optimizer) -> bool:
    """Whether the first argument of this optimizer's step is a closure, and not a model or a batch."""
    return _names_closure(cast("Hashable", type(optimizer)))


@functools.lru_cache(maxsize=256)
def _names_closure(kind: Any) -> bool:
    try:
        names = list(inspect.signature(kind.step).parameters)
    except (TypeError, ValueError):
        return False
    return len(names) > 1 and "closure" in names[1]


def watched_closure(closure: Any, around: Around) -> Any:
    """The closure, with every evaluation inside `around`."""
    if not isinstance(closure, FunctionType):
        return _ClosureProxy(closure, around)
    first = True

    @functools.wraps(closure)
    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        now, first = first, False
        with around(now):
            return closure(*args, **kwargs)

    return watched


class _ClosureProxy:
    """In the place of a closure that is an object."""

    def __init__(self, closure: Any, around: Around) -> None:
        object.__setattr__(self, "_closure", closure)
        object.__setattr__(self, "_around", around)
        object.__setattr__(self, "_first", True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        now = object.__getattribute__(self, "_first")
        object.__setattr__(self, "_first", False)
        with object.__getattribute__(self, "_around")(now):
            return object.__getattribute__(self, "_closure")(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_closure"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_closure"), name, value)
