"""Has us step back before anything is compiled or traced in the middle of a forward pass that is looked into.

In: what takes our hooks and modes off. Out: nothing. Promised: it is called before torch begins to compile or to trace,
whatever name the script has got hold of it by, so that nothing of ours gets into what comes out; after `take_off` torch
is as it was. What was given to `torch.compile` before the pass is known before it begins, and is not looked into.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mlflow_stability.probes.hook_handles import HookHandles

_BEGINNINGS = (
    ("torch", "compile"),
    ("torch._dynamo", "optimize"),
    ("torch.jit._trace", "make_module"),
    ("torch._C", "_create_function_from_trace"),
    ("torch._C", "_create_function_from_trace_with_dict"),
    ("torch._C", "_create_graph_by_tracing"),
)
"""Modules and what each of them calls by this name to begin."""


class CompileRetreat:
    """On during one pass."""

    def __init__(self, step_back: Callable[[], None]) -> None:
        self._step_back = step_back
        self._handles = HookHandles()

    def put_on(self) -> None:
        """Begin."""
        for owner, name in _BEGINNINGS:
            module = sys.modules.get(owner)
            if hasattr(module, name):
                self._handles.patch(module, name, self._before)

    def take_off(self) -> None:
        """End; once more does no harm."""
        self._handles.remove()

    def _before(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._step_back()
        return original(*args, **kwargs)
