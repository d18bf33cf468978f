"""Runs hooks of this package as they are where `torch.compile` has compiled the code that calls them.

In: a function. Out: the same function, which the compiler neither compiles nor, with `is_hook`, makes part of the
script's compiled code. Guarantees: what the script compiles stays the same code; a function that calls the script's
own code leaves that one compiled. Torch itself breaks its graph at every optimizer step, so that a hook breaks none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

from mlflow_stability.probes.hooks import torch_api

F = TypeVar("F", bound=Callable[..., Any])


_NEEDED = ("set_code_exec_strategy", "FrameExecStrategy", "FrameAction")


def uncompiled(function: F) -> F:
    """Never compile this function, nor anything that it calls."""
    _skip(function, "SKIP")
    return function


def uncompiled_hook(function: F) -> F:
    """Likewise; compiled code calls it instead of containing it."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return uncompiled(function)


def uncompiled_itself(function: Callable[..., Any]) -> None:
    """Never compile this function alone: what it calls may be the script's."""
    while isinstance(function, partial):
        function = function.func
    _skip(getattr(function, "__func__", function), "DEFAULT")


def _skip(function: Callable[..., Any], callees: str) -> None:
    if isinstance(function, FunctionType) and torch_api.has(*_NEEDED):
        action = torch_api.FrameAction
        strategy = torch_api.FrameExecStrategy(action.SKIP, getattr(action, callees))
        torch_api.set_code_exec_strategy(function.__code__, strategy)
