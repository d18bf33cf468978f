"""Observers of modules during one forward pass.

In: modules, and what to run before and after their calls. Out: nothing. Guarantees: the modules and their hook tables
stay as they are; after `remove` nothing runs again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import Module

from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS, WatchedCalls

Before = Callable[[Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[Module, tuple[Any, ...], Any], None]


class PassHooks:
    """What one probe runs in one forward pass; whoever gives a function makes it harmless."""

    def __init__(self) -> None:
        self._watched: list[WatchedCalls] = []

    def before(self, module: Module, body: Before) -> None:
        """Run `body(module, args, kwargs)` before each call of a module."""
        self._watched.append(MODULE_CALLS.observe(module, _Hook(self, before=body)))

    def after(self, module: Module, body: After) -> None:
        """Run `body(module, args, output)` after it."""
        self._watched.append(MODULE_CALLS.observe(module, _Hook(self, after=body)))

    def remove(self) -> None:
        """End."""
        while self._watched:
            self._watched[-1].remove()  # first: Ctrl-C may come in between
            del self._watched[-1:]

    @property
    def is_on(self) -> bool:
        """Whether the pass is still going on."""
        return bool(self._watched)


def _nothing(*_: object) -> None:
    """Run where there is nothing to run."""


class _Hook:
    """One function on one module."""

    def __init__(self, hooks: PassHooks, before: Before = _nothing, after: After = _nothing) -> None:
        self._hooks, self._before, self._after = hooks, before, after

    def call_began(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._hooks.is_on:
            self._before(module, args, kwargs)

    def call_ended(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        if self._hooks.is_on:
            self._after(module, args, output)

    def call_failed(self, module: Module) -> None:
        """Whoever opened the pass closes it."""
