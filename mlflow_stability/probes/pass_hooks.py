"""Puts hooks on modules for the length of one forward pass.

In: a root module, modules in it, and what to run. Out: nothing. Promised: after `remove` no hook runs again, and none
is left on a module, but for one case: torch walks over the hooks of a module whose pass has raised, and would raise
over it if one of them went away meanwhile; that one does nothing any more, goes at the next `remove`, and is not taken
along when the module is copied or pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from mlflow_stability.probes import torch_api
from mlflow_stability.probes.forward_hooks import Hook

Before = Callable[[Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[Module, tuple[Any, ...], Any], None]


class PassHooks:
    """The hooks of one probe in one forward pass; its bodies are made harmless by whoever gives them."""

    def __init__(self, root: Module) -> None:
        self._root = root
        self._on = True
        self._handles: list[tuple[Module, RemovableHandle]] = []

    def before(self, module: Module, body: Before) -> None:
        """Run `body(module, args, kwargs)` before each forward pass of a module."""
        handle = module.register_forward_pre_hook(_BeforePass(self._while_on(body)), with_kwargs=True)
        self._handles.append((module, handle))

    def after(self, module: Module, body: After) -> None:
        """Run `body(module, args, output)` after it."""
        hook = _AfterPass(self._while_on(body))
        # Before the hook by which a root tells that its pass is over.
        self._handles.append((module, module.register_forward_hook(hook, prepend=True)))

    def remove(self, whole: bool) -> None:
        """Take them off. `whole`: the pass has not raised an exception, or is long over."""
        self._on = False
        kept = []
        for module, handle in self._handles:
            if module is self._root and not whole:
                kept.append((module, handle))
            else:
                handle.remove()
        self._handles = kept

    @property
    def hold_anything(self) -> bool:
        """Whether one is still on a module."""
        return bool(self._handles)

    def _while_on(self, body: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            if self._on and not torch.compiler.is_compiling() and not torch_api.get_tracing_state():
                body(*args)

        return run


class _BeforePass(Hook):
    __slots__ = ()

    def __call__(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._run(module, args, kwargs)


class _AfterPass(Hook):
    __slots__ = ()

    def __call__(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        self._run(module, args, output)
