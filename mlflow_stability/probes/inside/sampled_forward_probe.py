"""Base of probes that observe modules during the forward pass of some steps, and the names of these modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.nn import Module

from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.model_discovery import plain_name, unwrapped
from mlflow_stability.probes.probe import Guard, next_sampled_step

FIRST_STEP = 10  # of a model that is measured
Before = Callable[[Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[Module, tuple[Any, ...], Any], None]


class WatchedModules:
    """Names of the modules inside the models that were seen, so that modules of two models have different names.

    Names are without what wrappers add, and begin with the model's class where several models train. Guarantees:
    neither models nor modules are kept alive.
    """

    def __init__(self, models: Callable[[], Sequence[Module]]) -> None:
        self._models = models  # returns the models that train

    def inside(self, root: Module) -> Iterator[tuple[str, Module]]:
        """Yield the modules in `root` without `root` itself, each once, in the order of the model."""
        title, path = self._place(root)
        scripted: set[Module] = set()
        for name, module in Module.named_modules(root):
            if isinstance(module, torch.jit.ScriptModule):  # hooks do not run inside it
                scripted.update(Module.modules(module))
            plain = ".".join(filter(None, (path, plain_name(name))))
            if plain and module not in scripted:
                yield title + plain, module

    def _place(self, root: Module) -> tuple[str, str]:
        """Return the title of the model of `root`, and the path of `root` in it: usually `root` is the model."""
        part = unwrapped(root)
        for model in map(unwrapped, self._models()):
            for name, module in () if model is part else Module.named_modules(model):
                if module is part or module is root:
                    return self._title(model), plain_name(name)
        return self._title(part), ""

    def _title(self, model: Module) -> str:
        models = list(map(unwrapped, self._models()))
        if all(other is not model for other in models):
            models.append(model)
        if len(models) == 1:
            return ""
        titles = [type(other).__name__ for other in models]
        at = next(number for number, other in enumerate(models) if other is model)
        return f"{titles[at]}_{at}." if Counter(titles)[titles[at]] > 1 else f"{titles[at]}."


class PassHooks:
    """The functions of one probe in one forward pass: none runs after the pass, or after `remove`.

    Modules and their hook tables stay as they are.
    """

    def __init__(self, guard: Guard, part: str, alive: Callable[[], bool]) -> None:
        self._guarded = cache(partial(guard, part))  # one function is observed at many modules
        self.is_on = alive  # refers to the frame of the pass: not kept beyond it
        self._watched: list[Callable[[], None]] = []

    def before(self, module: Module, body: Before) -> None:
        """Run `body(module, args, kwargs)` before each call of a module."""
        self._watched.append(MODULE_CALLS.observe(module, _Hook(self, before=self._guarded(body))))

    def after(self, module: Module, body: After) -> None:
        """Run `body(module, args, output)` after each call of a module."""
        self._watched.append(MODULE_CALLS.observe(module, _Hook(self, after=self._guarded(body))))

    def remove(self) -> None:
        self.is_on = _over
        while self._watched:
            self._watched[-1]()  # first, because Ctrl-C may come in between
            del self._watched[-1:]


def _nothing(*_: object) -> None: ...


class _Hook:
    def __init__(self, hooks: PassHooks, before: Before = _nothing, after: After = _nothing) -> None:
        self._hooks, self._before, self._after = hooks, before, after

    def call_began(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._hooks.is_on():
            self._before(module, args, kwargs)

    def call_ended(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        if self._hooks.is_on():
            self._after(module, args, output)

    def call_failed(self, module: Module) -> None:
        """The probe that opened the pass closes it."""


def _over() -> bool:
    return False


class SampledForwardProbe:
    """Probe that observes modules in the tenth step of a model and in every `every`-th one."""

    part: str

    def __init__(self, guard: Guard, every: int, models: Callable[[], Sequence[Module]]) -> None:
        self.every = every
        self._guard = guard
        self._modules = WatchedModules(models)
        self._hooks: PassHooks | None = None

    def due(self, own_step: int) -> bool:
        return own_step == FIRST_STEP or own_step % self.every == 0

    def next_due(self, own_step: int) -> int:
        return next_sampled_step(own_step, FIRST_STEP, self.every)

    def observe(self, alive: Callable[[], bool]) -> PassHooks:
        self._hooks = PassHooks(self._guard, self.part, alive)
        return self._hooks

    def stop(self) -> None:
        """Remove the hooks and forget the pass."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
