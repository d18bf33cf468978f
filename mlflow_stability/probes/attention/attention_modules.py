"""Knows in which module of a model the forward pass is, and whose attention torch hides from us.

In: a model, between `put_on` and `take_off`. Out: the innermost module at any moment, by name; and calls of modules
whose attention torch may compute by a path of its own in which nothing can be seen. Guarantees: no hook is on a module
itself, for torch leaves that path where it finds one; nothing runs in other threads, or once the pass is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import Module
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from mlflow_stability.probes.attention.attention_mode import AttentionMode

FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Modules that take a path of their own while they do not train, unless they find a mode, or hooks, in their way."""

Hidden = Callable[[Module, tuple[Any, ...], dict[str, Any]], None]


class AttentionModules:
    """Where one forward pass is."""

    def __init__(
        self,
        root: Module,
        names: Mapping[int, str],
        mode: AttentionMode,
        alive: Callable[[], bool],
        see: Hidden,
        guard: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda body: body,
    ) -> None:
        self._alive = alive
        self._mode = mode
        """Steps aside for modules that may take a path of their own."""
        self._see = see
        """Takes a call of an attention, or of a layer whose attention was not called, within such a module."""
        self._names = names
        """Of the modules that are part of the model, by identity."""
        self._stack: list[Module] = [root]
        self._thread = threading.get_ident()
        self._hiding: Module | None = None
        """The module for which we stepped aside."""
        self._seen_within = False
        """Whether the attention of the layer that is being called was called."""
        self._hooks = self._ours(guard(self._enters)), self._ours(guard(self._leaves))

    def put_on(self) -> None:
        """Begin."""
        register_module_forward_pre_hook(self._hooks[0])
        register_module_forward_hook(self._hooks[1], with_kwargs=True, always_call=True)

    def take_off(self) -> None:
        """End; forget the pass and who listened. Once more does no harm."""
        for table in (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks):
            # By what it is, and not by a handle: Ctrl-C may have come before that could be kept.
            for key in [key for key, hook in table.items() if any(hook is each for each in self._hooks)]:
                torch_module._global_forward_hooks_with_kwargs.pop(key, None)
                torch_module._global_forward_hooks_always_called.pop(key, None)
                table.pop(key, None)  # last: it is by this one that the others are found
        self._alive, self._see = _never, _unheard
        self._stack.clear()

    def innermost(self) -> list[Module]:
        """The modules that are being called, the innermost first."""
        return self._stack[::-1]

    def name(self) -> str:
        """The innermost module that is part of the model."""
        return next((self._names[id(each)] for each in reversed(self._stack) if id(each) in self._names), "")

    def _ours(self, body: Callable[..., Any]) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            if not torch.compiler.is_compiling() and threading.get_ident() == self._thread:
                body(*args)

        return hook

    def _enters(self, module: Module, _args: Any) -> None:
        if not self._alive():
            self._mode.leave()  # what Ctrl-C has left behind is in nobody's way
            return
        self._stack.append(module)
        if isinstance(module, nn.TransformerEncoderLayer):
            self._seen_within = False
        if self._hiding is None and isinstance(module, FUSED) and not module.training:
            self._hiding = module if self._mode.step_aside() else None

    def _leaves(self, module: Module, args: tuple[Any, ...], *kwargs_and_output: Any) -> None:
        if not self._alive() or not any(each is module for each in self._stack):
            return
        while self._stack[-1] is not module:
            self._stack.pop()  # those that an exception has ended
        if self._hiding is not None and len(kwargs_and_output) == 2:  # after an exception there is an output alone
            self._look(module, args, kwargs_and_output[0])
        self._stack.pop()
        if module is self._hiding:
            self._hiding = None
            self._mode.come_back()

    def _look(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if isinstance(module, nn.MultiheadAttention):
            self._seen_within = True
            self._see(module, args, kwargs)
        elif isinstance(module, nn.TransformerEncoderLayer) and not self._seen_within:
            self._stack.append(module.self_attn)
            self._see(module, args, kwargs)
            self._stack.pop()


def _never() -> bool:
    return False


def _unheard(_module: Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Nobody listens any more."""
