"""Sees torch's functions go by while a model is called.

In: calls of torch's functions in one forward pass. Out: each of them, with its result, to a listener. Guarantees: each
call is made as it would have been, once, and what comes out of it is handed on untouched; with one exception: where the
listener answers a flex attention itself, in a pass that is run for us alone, its answer is taken. Nothing is left on
torch's stack of modes after `leave`, whatever was put on top of it; where another thread leaves, the mode passes every
call on from then on, and goes as soon as code of ours runs in its own thread again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.thread_state import FUNCTION_STACK, OwnMode, function_modes, remove_mode


class AttentionMode(OwnMode):
    """On during one forward pass."""

    def __init__(self, look: Callable[..., Any], answer: Callable[..., Any], alive: Callable[[], bool]) -> None:
        super().__init__()
        self.on = False
        self._look = look
        """Takes a function, its arguments, its named arguments and its result."""
        self._answer = answer
        """Takes the arguments of a flex attention; gives its output, or None to have it computed."""
        self._alive = alive
        """Whether the pass still goes on."""

    def enter(self) -> None:
        """Begin."""
        torch_api.need(*FUNCTION_STACK)
        self.on = True
        torch_api.push_on_torch_function_stack(self)

    def leave(self) -> None:
        """End, wherever on the stack of modes this one is, and forget who listened. Once more does no harm."""
        self.on = False
        self._look = self._answer = _unheard
        self._alive = _over
        remove_mode(self)

    def wanted(self) -> bool:
        """Whether the pass still goes on: Ctrl-C ends it without a word."""
        return self.on and self._alive()

    def step_aside(self) -> bool:
        """Leave the stack for a moment; False where a mode of the script is on top, and looks like one to torch."""
        stack = function_modes()
        if not self.on or not stack or stack[-1] is not self:
            return False
        remove_mode(self)
        return True

    def come_back(self) -> None:
        """After `step_aside`."""
        if self.on and not any(each is self for each in function_modes()):
            torch_api.push_on_torch_function_stack(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if torch.compiler.is_compiling() or not self.on:
            return func(*args, **kwargs)
        if type(func).__name__ == "FlexAttentionHOP":
            output = self._answer(args)
            return func(*args, **kwargs) if output is None else output
        result = func(*args, **kwargs)
        self._look(func, args, kwargs, result)
        return result


def _unheard(*_args: Any) -> None:
    """Nobody listens any more."""


def _over() -> bool:
    return False
