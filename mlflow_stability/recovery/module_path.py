"""Knows in which module a forward pass is at the moment.

In: a model. Out: the name of the module that is being run, while it is being run. Promised: its hooks are on the
modules only inside of the `with`, and change nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.nn import Module
from torch.utils.hooks import RemovableHandle


class ModulePath:
    """The modules that are being run, the innermost last."""

    def __init__(self) -> None:
        self._names: list[str] = []

    @property
    def name(self) -> str:
        """The innermost of them; empty: the model itself."""
        return self._names[-1] if self._names else ""

    @contextmanager
    def of(self, model: Module) -> Iterator[ModulePath]:
        """Follow a forward pass of this model."""
        handles: list[RemovableHandle] = []
        try:
            for name, module in Module.named_modules(model):
                if name:
                    handles.append(module.register_forward_pre_hook(partial(self._enter, name)))
                    handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield self
        finally:
            for handle in handles:
                handle.remove()
            self._names.clear()

    def _enter(self, name: str, _module: Module, _args: Any) -> None:
        self._names.append(name)

    def _leave(self, _module: Module, _args: Any, _outputs: Any) -> None:
        if self._names:
            self._names.pop()
