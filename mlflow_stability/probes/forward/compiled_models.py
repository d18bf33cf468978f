"""Detect compiled parts of a model, and have hooks removed before compiled code runs or is made.

Hooks are removed before torch enters a compiled region, compiles or traces, so that they never enter compiled code or
its guards. `torch.compile` asks dynamo at each call, before anything else: that call is patched. Compiled modules have
marks of their own; compiled functions are detected when they run, and remembered. Nothing of the script is called.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from torch.nn import Module

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.guarded_hooks import HookHandles
from mlflow_stability.probes.model_discovery import WRAPPERS

# Names in `torch_api` of functions that begin a compiled region, compile, or trace.
_REGION = "set_eval_frame"
_COMPILING = ("compile", "dynamo_optimize")
_TRACING = ("make_traced_module", "function_from_trace", "function_from_trace_with_dict", "graph_by_tracing")
FRAMES_PER_MODULE = 8
"""Frames of Python that a level of modules may take: three are torch's, hooks add one, checkpointing four."""
FREE_FRAMES = 150  # frames left for what is called inside the innermost module, by the script, by torch and by us

OnCompiled = Callable[[bool], None]  # called with True for the compiler, False for a trace


class CompiledCodeWatch:
    """Active during one pass. Several may be active at once: torch is patched from the first to the last."""

    _on: list[CompiledCodeWatch] = []  # noqa: RUF012 # one list for all of them
    _handles = HookHandles()

    def __init__(self, on_compiled: OnCompiled) -> None:
        self._on_compiled = on_compiled

    def put_on(self) -> None:
        if not self._on:
            if torch_api.is_dynamo_loaded():
                torch_api.need(_REGION)  # compiled code could not be seen
            self._handles.patch_symbol(_REGION, _before_region)
            for symbol in (*_COMPILING, *_TRACING):
                self._handles.patch_symbol(symbol, partial(_before_making, symbol in _COMPILING))
        if self not in self._on:
            self._on.append(self)

    def take_off(self) -> None:
        """End; may be called twice."""
        if self in self._on:
            self._on.remove(self)
        if not self._on:
            self._handles.remove()

    @classmethod
    def announce_compiled(cls, compiled: bool) -> None:
        """Have all active watches remove their hooks, the last one first."""
        for watch in reversed(cls._on[:]):
            watch._on_compiled(compiled)


def _before_region(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    caller = sys._getframe(2)  # this function, the patch, and the caller of dynamo
    context = caller.f_locals.get("self", sys)
    if getattr(context, "callback", sys) is not None:  # `torch.compiler.disable` asks with None
        CompiledCodeWatch.announce_compiled(True)
    return original(*args, **kwargs)


def _before_making(compiled: bool, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    CompiledCodeWatch.announce_compiled(compiled)
    return original(*args, **kwargs)


_ran_compiled: weakref.WeakSet[Module] = weakref.WeakSet()


def ran_compiled(model: Module) -> None:
    """Note that compiled code was entered, or made, in a forward pass of this model."""
    _ran_compiled.add(model)


def compiled(model: Module) -> str:
    """Return which parts of a model are compiled, as far as known: ``whole``, ``in part`` or ``no``."""
    inner = model
    while True:
        if _is_compiled_module(inner):
            return "whole"
        names = WRAPPERS.intersection(inner._modules.keys())
        wrapped = inner._modules[next(iter(names))] if len(inner._modules) == 1 and names else None
        if wrapped is None:
            break
        inner = wrapped
    return "in part" if model in _ran_compiled or any(map(_is_compiled_module, Module.modules(inner))) else "no"


def _is_compiled_module(module: Module) -> bool:
    if vars(module).get("_compiled_call_impl") is not None:
        return True
    return any(kind.__name__ == "OptimizedModule" for kind in type(module).__mro__)


def too_deep(root: Module) -> bool:
    """Return whether hooks on such nested modules could exceed the recursion limit, called from here."""
    room = sys.getrecursionlimit() - FREE_FRAMES - depth_of(root) * FRAMES_PER_MODULE
    frame: FrameType | None = sys._getframe()
    while frame is not None and room >= 0:
        frame = frame.f_back
        room -= 1
    return room < 0


def depth_of(root: Module) -> int:
    """Return how deep modules are nested, counting the root."""
    return max(name.count(".") + 2 if name else 1 for name, _ in Module.named_modules(root))
