"""Has us step back before compiled code runs, or is made, in the middle of a forward pass that is looked into.

In: what takes our hooks and modes off. Out: nothing. Promised: it is called before torch enters a compiled region, and
before it begins to compile or to trace, whatever name the script has got hold of it by, so that nothing of ours gets
into what comes out and no guard on compiled code meets it; after `take_off` torch is as it was.

What `torch.compile` made asks dynamo for its turn, each time that it is called, before anything else happens. That is
where it is seen; a function that was kept from the compiler asks likewise, and is no reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mlflow_stability.probes import torch_api
from mlflow_stability.probes.hook_handles import HookHandles

_REGION = "set_eval_frame"
"""What begins a compiled region."""
_COMPILING = ("compile", "dynamo_optimize")
_TRACING = ("make_traced_module", "function_from_trace", "function_from_trace_with_dict", "graph_by_tracing")
"""Likewise, what begins to compile and to trace."""

StepBack = Callable[[bool], None]
"""Takes whether it is for the compiler; else for a trace."""


class CompileRetreat:
    """On during one pass. Several are on at once: torch is patched for the first, and put right after the last."""

    _on: list[CompileRetreat] = []  # noqa: RUF012 # one list for all of them
    _handles = HookHandles()

    def __init__(self, step_back: StepBack) -> None:
        self._step_back = step_back

    def put_on(self) -> None:
        """Begin."""
        if not self._on:
            if torch_api.is_dynamo_loaded():
                torch_api.need(_REGION)  # compiled code could not be seen
            self._handles.patch_symbol(_REGION, _before_region)
            for each in _COMPILING:
                self._handles.patch_symbol(each, _before_compiling)
            for each in _TRACING:
                self._handles.patch_symbol(each, _before_tracing)
        if self not in self._on:
            self._on.append(self)

    def take_off(self) -> None:
        """End; once more does no harm."""
        if self in self._on:
            self._on.remove(self)
        if not self._on:
            self._handles.remove()

    @classmethod
    def all_step_back(cls, compiled: bool) -> None:
        """Have everybody step back, the last one first."""
        for each in reversed(cls._on[:]):
            each._step_back(compiled)


def _before_region(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    caller = sys._getframe(2)  # this one, the patch, and who asks for dynamo
    context = caller.f_locals.get("self", sys)
    if getattr(context, "callback", sys) is not None:  # `torch.compiler.disable` asks with None
        CompileRetreat.all_step_back(True)
    return original(*args, **kwargs)


def _before_compiling(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    CompileRetreat.all_step_back(True)
    return original(*args, **kwargs)


def _before_tracing(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    CompileRetreat.all_step_back(False)
    return original(*args, **kwargs)
