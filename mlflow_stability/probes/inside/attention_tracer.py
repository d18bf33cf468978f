"""Finds the attention in one forward pass of a model, in whatever way it is written.

Not found is what torch may fuse in modules in evaluation mode. Guarantees: each call of torch's functions is made once,
and its result is returned untouched, except that a flex attention is answered here in a pass that is run for us alone.
No hook is on a module itself, because torch leaves its fused paths where it finds one; nothing runs in other threads,
or once the pass is over. Nothing is left on torch's stack of modes after `close`; where another thread closes, the mode
does nothing from then on, and is removed as soon as code of ours runs in its own thread again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import Module, functional
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from mlflow_stability.probes.forward.forward_rerun import runs_again
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.thread_state import (
    FUNCTION_STACK,
    OwnMode,
    function_modes,
    is_measurable,
    remove_mode,
    untracked,
)
from mlflow_stability.probes.inside.attention_scores import Scores, heads_of, scores_of_call, scores_of_softmax
from mlflow_stability.probes.inside.attention_sources import (
    SOFTMAX,
    SoftmaxTrail,
    output_of_flex,
    scores_of_flex,
    scores_of_function,
)


class AttentionMode(OwnMode):
    """Mode that observes torch's functions during one forward pass."""

    def __init__(self, look: Callable[..., Any], answer: Callable[..., Any], alive: Callable[[], bool]) -> None:
        super().__init__()
        self.on = False
        self._look = look  # called with function, args, kwargs and result
        self._answer = answer  # returns the output of a flex attention, or None to have it computed
        self._alive = alive

    def enter(self) -> None:
        torch_api.need(*FUNCTION_STACK)
        self.on = True
        torch_api.push_on_torch_function_stack(self)

    def leave(self) -> None:
        """End, wherever on the stack of modes this one is, and forget the pass; may be called twice."""
        self.on = False
        self._look = self._answer = _ignore
        self._alive = _over
        remove_mode(self)

    def wanted(self) -> bool:
        return self.on and self._alive()

    def step_aside(self) -> bool:
        """Leave the stack for a moment; return False if a mode of the script is on top."""
        stack = function_modes()
        if not self.on or not stack or stack[-1] is not self:
            return False
        remove_mode(self)
        return True

    def come_back(self) -> None:
        if self.on and not any(mode is self for mode in function_modes()):
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


def _ignore(*_args: Any) -> None:
    """Replace a function after the pass."""


def _over() -> bool:
    return False


# Modules that take a fused path in evaluation, unless there are modes or hooks.
FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class AttentionModules:
    """The modules that are called in one forward pass."""

    def __init__(
        self,
        root: Module,
        names: Mapping[int, str],
        mode: AttentionMode,
        alive: Callable[[], bool],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._alive = alive
        self._mode = mode  # steps aside for modules that may take a fused path
        self._names = names  # of the modules of the model, by identity
        self._stack: list[Module] = [root]
        self._thread = threading.get_ident()
        self._hiding: Module | None = None  # module for which the mode stepped aside
        self._hooks = self._ours(guard(self._enters)), self._ours(guard(self._leaves))

    def put_on(self) -> None:
        register_module_forward_pre_hook(self._hooks[0])
        register_module_forward_hook(self._hooks[1], always_call=True)

    def take_off(self) -> None:
        """End and forget the pass; may be called twice."""
        for table in (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks):
            # By the hook and not by a handle, which Ctrl-C may have prevented from being stored.
            for key in [key for key, hook in table.items() if any(hook is own for own in self._hooks)]:
                torch_module._global_forward_hooks_always_called.pop(key, None)
                table.pop(key, None)  # last: the other is found by it
        self._alive = _over
        self._stack.clear()

    def innermost(self) -> list[Module]:
        """Return the modules that are being called, the innermost first."""
        return self._stack[::-1]

    def name(self) -> str:
        """Return the name of the innermost module of the model."""
        return next((self._names[id(module)] for module in reversed(self._stack) if id(module) in self._names), "")

    def _ours(self, body: Callable[..., Any]) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            if not torch.compiler.is_compiling() and threading.get_ident() == self._thread:
                body(*args)

        return hook

    def _enters(self, module: Module, _args: Any) -> None:
        if not self._alive():
            self._mode.leave()  # left behind by Ctrl-C
            return
        self._stack.append(module)
        if self._hiding is None and isinstance(module, FUSED) and not module.training:
            self._hiding = module if self._mode.step_aside() else None

    def _leaves(self, module: Module, *_: Any) -> None:
        if not self._alive() or not any(running is module for running in self._stack):
            return
        while self._stack[-1] is not module:
            self._stack.pop()  # ended by an exception
        self._stack.pop()
        if module is self._hiding:
            self._hiding = None
            self._mode.come_back()


# Parts of the names of modules whose queries and keys are of different sequences.
_CROSS = ("cross", "encoder_attn", "encdec", "multihead_attn")


class AttentionObserver(Protocol):
    """Observer of the attention of a pass; called in the middle of it, with untracked operations."""

    def measure(self, scores: Scores, cross: bool) -> Any:
        """Measure scores, which exist only during the call."""

    def add(self, measured: Any, name: str) -> None:
        """Record what was measured as an attention of this module."""


class AttentionTracer:
    def __init__(
        self,
        root: Module,
        names: Mapping[int, str],
        alive: Callable[[], bool],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
        observer: AttentionObserver,
    ) -> None:
        self._observer = observer
        self._trail = SoftmaxTrail()
        self._mode = AttentionMode(guard(self._look), guard(self._answer_flex), alive)
        self._places = AttentionModules(root, names, self._mode, alive, guard)

    def open(self) -> None:
        self._places.put_on()
        self._mode.enter()

    def close(self) -> None:
        self._mode.leave()
        self._places.take_off()

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func is functional.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            heads = heads_of(self._places.innermost()[:2], len(query)) if query.dim() == 3 else 1
            rounded_to = _autocast_type(query)
            with untracked():
                scores = scores_of_call(heads, rounded_to, *args, **kwargs)
                self._measure(scores)
        elif func is functional.multi_head_attention_forward:
            query, key = (args[at] if len(args) > at else kwargs[name] for at, name in enumerate(("query", "key")))
            if is_measurable(query) and is_measurable(key):
                with untracked():
                    self._measure(scores_of_function(args, kwargs), cross=query is not key)
        elif func in SOFTMAX:
            with untracked():
                self._trail.begin(args, kwargs, result, self._candidate)
        elif self._trail.waiting and isinstance(result, Tensor):
            with untracked():
                measured = self._trail.follow(func, args, kwargs, result)
            if measured is not None:
                self._observer.add(measured, self._places.name())

    def _candidate(self, scores: Tensor) -> Any:
        heads = heads_of(self._places.innermost()[:2], len(scores))
        script_scores = scores_of_softmax(heads, scores)
        return self._observer.measure(script_scores, self._is_cross(script_scores))

    def _answer_flex(self, args: tuple[Any, ...]) -> Any:
        if not is_measurable(args[0]):
            return None
        with untracked():
            scores = scores_of_flex(args, _autocast_type(args[0]))
            self._measure(scores)
            return output_of_flex(args, scores) if runs_again() else None

    def _measure(self, scores: Scores | None, cross: bool | None = None) -> None:
        if scores is None or min(scores.shape) < 1 or scores.shape[-1] < 2:
            return
        measured = self._observer.measure(scores, self._is_cross(scores) if cross is None else cross)
        self._observer.add(measured, self._places.name())

    def _is_cross(self, scores: Scores) -> bool:
        _, _, queries, keys = scores.shape
        name = self._places.name().lower()
        return queries != keys or any(part in name for part in _CROSS)


def _autocast_type(tensor: Tensor) -> torch.dtype | None:
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
