"""Finds classes of tensors whose objects cannot be made while a mode watches torch's operations.

In: nothing. Out: the name of such a class, empty where there is none. Promised: a class that torch's own constructor
makes the objects of is found, whether the script calls that constructor itself or has inherited it.

That constructor asks for an empty tensor first and then gives it its class. Under a `TorchDispatchMode` the empty one
comes by way of Python, is a plain `torch.Tensor` for good, and the constructor raises a RuntimeError.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch import Tensor


def fragile_class() -> str:
    """The name of the first such class that anybody has defined."""
    return next((f"{each.__module__}.{each.__qualname__}" for each in _below(Tensor) if _is_fragile(each)), "")


def _is_fragile(kind: type) -> bool:
    maker = next(each for each in kind.__mro__ if "__new__" in vars(each))
    if maker in Tensor.__mro__:
        return True
    if maker.__module__.startswith("torch."):  # those that define how they are made do it in another way
        return False
    made_by = vars(maker)["__new__"]
    code = getattr(inspect.unwrap(getattr(made_by, "__func__", made_by)), "__code__", None)
    return code is None or "__new__" in code.co_names  # it calls that of the class above


def _below(kind: type) -> Iterator[type]:
    below: list[type] = type.__subclasses__(kind)
    for each in below:
        yield each
        yield from _below(each)
