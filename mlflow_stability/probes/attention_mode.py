"""Sees torch's functions go by while a model is called.

In: calls of torch's functions in one forward pass. Out: each of them, with its result, to a listener. Promised: each
call is made as it would have been, once, and what comes out of it is handed on untouched; with one exception: where the
listener answers a flex attention itself, in a pass that is run for us alone, its answer is taken. Nothing is left on
torch's stack of modes after `leave`, whatever was put on top of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack


class AttentionMode(TorchFunctionMode):
    """On during one forward pass."""

    def __init__(self, look: Callable[..., Any], answer: Callable[..., Any]) -> None:
        super().__init__()
        self.on = False
        self._look = look
        """Takes a function, its arguments, its named arguments and its result."""
        self._answer = answer
        """Takes the arguments of a flex attention; gives its output, or None to have it computed."""

    def enter(self) -> None:
        """Begin."""
        self.on = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """End, wherever on the stack of modes this one is, and forget who listened."""
        self.on = False
        self._look = self._answer = _unheard
        above: list[TorchFunctionMode] = []
        while self._on_stack():
            top = _stack()[-1]
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call] # takes off what is on top, itself or not
            if top is not self:
                above.append(top)
        for each in reversed(above):
            TorchFunctionMode.__enter__(each)  # type: ignore[no-untyped-call]

    def step_aside(self) -> bool:
        """Leave the stack for a moment; False where a mode of the script is on top, and looks like one to torch."""
        stack = _stack()
        if not self.on or not stack or stack[-1] is not self:
            return False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True

    def come_back(self) -> None:
        """After `step_aside`."""
        if self.on and not self._on_stack():
            self.__enter__()  # type: ignore[no-untyped-call]

    def _on_stack(self) -> bool:
        return any(each is self for each in _stack())

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


def _stack() -> list[TorchFunctionMode]:
    """The modes that are on, the one on top last."""
    return list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _unheard(*_args: Any) -> None:
    """Nobody listens any more."""
