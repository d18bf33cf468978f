"""Lets classes of tensors be made as they are without us, while a mode of ours watches torch's operations.

In: how to have the mode step aside. Out: nothing. Promised: an object of a class that torch's own constructor makes,
the script's own call of it or the one that was inherited, is made as if no mode of ours were on; of a class that is
defined meanwhile as well; after `take_off` no class has anything of ours.

That constructor asks for an empty tensor first and then gives it its class. Under a `TorchDispatchMode` the empty one
comes by way of Python, is a plain `torch.Tensor` for good, and the constructor raises a RuntimeError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from mlflow_stability.probes.hook_handles import HookHandles


class FragileTensors:
    """The classes, during one pass."""

    def __init__(self, stepped_aside: Callable[[], AbstractContextManager[None]]) -> None:
        self._stepped_aside = stepped_aside
        self._handles = HookHandles()

    def put_on(self) -> None:
        """Begin."""
        for each in _below(Tensor):
            self._watch(each)
        inherited = Tensor.__init_subclass__.__func__ if "__init_subclass__" in vars(Tensor) else None  # type: ignore[attr-defined]
        handles = self._handles

        def defined(kind: type[Any], /, **kwargs: Any) -> None:
            if inherited is None:
                super(Tensor, kind).__init_subclass__(**kwargs)  # type: ignore[misc]
            else:
                inherited(kind, **kwargs)
            if handles.hold_anything:
                self._watch(kind)

        handles.replace(Tensor, "__init_subclass__", classmethod(defined))

    def take_off(self) -> None:
        """End; once more does no harm."""
        self._handles.remove()

    def _watch(self, kind: type) -> None:
        if _is_fragile(kind):
            self._handles.patch(kind, "__new__", self._made)

    def _made(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._stepped_aside():
            return original(*args, **kwargs)


def _is_fragile(kind: type) -> bool:
    maker = next(each for each in kind.__mro__ if "__new__" in vars(each))
    if maker in Tensor.__mro__:
        return True
    if maker is not kind:  # what is done to the class that makes it is done for it
        return False
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
