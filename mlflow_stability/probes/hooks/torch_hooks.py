"""Installs and removes all hooks and patches in torch, which call a meter.

Guarantees: `remove` restores everything; a patched function returns and raises what the original does; compiled code
contains no hook of this package, and calls those of its optimizer steps. A closure of an optimizer's step is replaced
by one with the same attributes, so that its end is seen.

Nested optimizer steps (``super().step()``, SAM, an optimizer in a closure) are detected from the call stack. A counter
would stay wrong after a step that ends in an exception, because such a step runs no hook at its end.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import get_ident
from types import CodeType, FrameType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from mlflow_stability.probes.first_look.loaded_states import LOADED_STATES
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.foreign_optimizers import ForeignOptimizers
from mlflow_stability.probes.hooks.guarded_hooks import HookHandles, TrainingThread, is_cuda_used, uncompiled_hook
from mlflow_stability.probes.policy_samples import POLICY_SAMPLES
from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.step.step_meter import StepMeter

# Context of an evaluation; its argument says whether it is the first of its step.
Around = Callable[[bool], AbstractContextManager[None]]


@functools.lru_cache(maxsize=256)
def takes_closure(kind: Any) -> bool:
    """Whether the first argument of a step of this class of optimizers is a closure."""
    try:
        names = list(inspect.signature(kind.step).parameters)
    except (TypeError, ValueError):
        return False
    return len(names) > 1 and "closure" in names[1]


def watched_closure(closure: Any, around: Around) -> Any:
    """Return a closure every evaluation of which runs inside `around`."""
    if not isinstance(closure, FunctionType):
        return _ClosureProxy(closure, around)
    first = True

    @functools.wraps(closure)
    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        is_first, first = first, False
        with around(is_first):
            return closure(*args, **kwargs)

    return watched


class _ClosureProxy:
    """Stand-in for a closure that is an object; its attributes are the closure's own."""

    def __init__(self, closure: Any, around: Around) -> None:
        object.__setattr__(self, "_closure", closure)
        object.__setattr__(self, "_around", around)
        object.__setattr__(self, "_first", True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_first = object.__getattribute__(self, "_first")
        object.__setattr__(self, "_first", False)
        with object.__getattribute__(self, "_around")(is_first):
            return object.__getattribute__(self, "_closure")(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_closure"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_closure"), name, value)


# Every step that torch hooks runs inside a frame of this one function.
_STEP_CODE: CodeType = torch_api.profile_hook_step(lambda: None).__code__


def is_nested_step() -> bool:
    frame: FrameType | None = sys._getframe(1)
    steps = 0
    while frame is not None:
        if frame.f_code is _STEP_CODE:
            steps += 1
            if steps == 2:
                return True
        frame = frame.f_back
    return False


# Symbols of the norm that `clip_grad_norm_` takes. A script that imported `clip_grad_norm_` before us still looks the
# norm up here at each call.
_NORM_NAMES = ("get_total_norm", "public_get_total_norm")
# Symbols of the clipping, and the name of its threshold. A `clip_grad_value_` that a script imported before us is not
# seen.
_CLIP_NAMES = (
    ("clip_grads_with_norm_", "max_norm"),
    ("public_clip_grads_with_norm_", "max_norm"),
    ("clip_grad_value_", "clip_value"),
    ("public_clip_grad_value_", "clip_value"),
)

# Types that can be iterated more than once.
_REITERABLE = (Sequence, Tensor, type(None))

# More backward passes without an optimizer step than any gradient accumulation has.
BACKWARDS_WITHOUT_STEP = 200


@dataclass(slots=True)
class Counts:
    backwards: int = 0
    steps: int = 0
    optimizers: int = 0
    replays: int = 0  # of CUDA graphs, since the last step or new optimizer: what they compute runs no hook

    def clear(self) -> None:
        self.backwards = self.steps = self.optimizers = self.replays = 0


class TorchWatch:
    """All hooks and patches of torch: report backward passes and optimizer steps to a `StepMeter`."""

    def __init__(
        self,
        guard: Guard,
        meter: StepMeter,
        on_foreign_thread: Callable[[], None] = lambda: None,
        counts: Counts | None = None,
        on_unseen_training: Callable[[], None] = lambda: None,
    ) -> None:
        self._guard = guard
        self._thread = TrainingThread(on_foreign_thread)
        self._handles = HookHandles()
        self._counts = Counts() if counts is None else counts
        self._meter = meter
        self._newest: Callable[[], Optimizer | None] = lambda: None  # weak reference to the optimizer that stepped last
        self._has_nested = True  # a step within a step was seen since the last outer one
        self._in_step = True  # a step may have begun and not ended
        self._signs = guard("unseen training", on_unseen_training)
        self._in_backward = self._watches_fsdp = False
        self._norms_taken = 0  # norms of gradients that the script took
        self._backward = guard("step hooks", meter.backward)
        self._backward_over = guard("step hooks", meter.backward_ended)
        self._backward_failed = guard("step hooks", meter.backward_failed)
        self._zeroed = guard("step hooks", meter.zeroed)
        self._replayed = guard("step hooks", meter.replayed)
        self._clip = guard("norm before clipping", meter.clip)
        self._clipped = guard("clipping", meter.clipped)
        self._scaled = guard("step hooks", meter.scaled)
        self._unscaled = guard("step hooks", meter.unscaled)
        self._swallowed = guard("step hooks", meter.swallowed)
        self._meter_before_step = guard("step hooks", meter.before_step)
        self._step_with_closure = guard("step hooks", meter.step_with_closure)
        self._closure_begins = guard("step hooks", meter.closure_begins)
        self._closure_ends = guard("step hooks", meter.closure_ends)
        self._step_ended = guard("step hooks", meter.step_ended)
        self._made = guard("step hooks", meter.optimizer_made)
        self._look_away = guard("step hooks", meter.look_away)
        self._uneven = guard("other processes", meter.ranks.pause)
        self._foreign = ForeignOptimizers(
            guard, self._handles, self._thread, self._before_foreign_step, self._step_ended
        )

    def install(self) -> None:
        handles = self._handles
        handles.hold(register_optimizer_step_pre_hook(self._before_step))
        handles.hold(register_optimizer_step_post_hook(self._after_step))
        handles.patch(Optimizer, "__init__", self._around_making)
        self._patch("backward", self._around_backward)
        self._patch("graph_replay", self._around_replay)
        for name in ("zero_grad_of_optimizer", "zero_grad_of_module"):
            self._patch(name, self._around_zero_grad)
        for name in _NORM_NAMES:
            self._patch(name, self._around_norm)
        for name, limit in _CLIP_NAMES:
            self._patch(name, partial(self._around_clip, limit))
        for name, around in (
            ("scale", self._around_scale),
            ("unscale_", self._around_unscale),
            ("scaler_step", self._around_scaler_step),
            ("join_begins", partial(self._around_join, True)),
            ("join_ends", partial(self._around_join, False)),
        ):
            self._patch(name, around)
        POLICY_SAMPLES.install(handles, self._guard)
        LOADED_STATES.install(handles, self._guard)
        self._watch_fsdp()
        self._foreign.look()

    @property
    def is_installed(self) -> bool:
        return self._handles.hold_anything

    def remove(self) -> None:
        self._handles.remove()
        self._foreign.forget()
        self._watches_fsdp = False
        self._look_away()

    def _watch_fsdp(self) -> None:
        if not self._watches_fsdp and "torch.distributed.fsdp" in sys.modules:
            self._watches_fsdp = True
            self._patch("fsdp_clip_grad_norm_", self._around_fsdp_clip)

    def _patch(self, symbol: str, around: Callable[..., Any]) -> None:
        self._handles.patch_symbol(symbol, around, self._thread)

    @uncompiled_hook
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        thread = self._thread
        if (is_compiling() or get_ident() != thread.ident or is_cuda_used()) and thread.trains_elsewhere():
            return None
        if self._in_step and is_nested_step():
            self._has_nested = True
            return None
        self._has_nested, self._in_step = False, True
        if self._newest() is not optimizer:
            parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
            if any(first.is_meta for first in islice(parameters, 1)):  # a dry run
                return None
            self._newest = weakref.ref(optimizer)
        self._counts.steps += 1
        self._counts.replays = 0
        by_name = kwargs.get("closure")
        closure = by_name
        if closure is None and len(args) > 1 and takes_closure(cast("Hashable", type(optimizer))):
            closure = args[1]
        if closure is None:
            self._meter_before_step(optimizer)
            return None
        self._step_with_closure(optimizer)
        wrapped = watched_closure(closure, partial(self._evaluated, optimizer))
        if by_name is not None:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _before_foreign_step(self, optimizer: Optimizer) -> None:
        self._has_nested, self._newest = False, weakref.ref(optimizer)
        self._counts.steps += 1
        self._meter_before_step(optimizer)

    @uncompiled_hook
    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        thread = self._thread
        if (is_compiling() or get_ident() != thread.ident or is_cuda_used()) and thread.trains_elsewhere():
            return
        # Where no nested step has begun since, this is the end of the outer step.
        if (not self._has_nested and self._newest() is optimizer) or not is_nested_step():
            self._in_step = False
            self._step_ended(optimizer)

    def _around_making(self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)  # in any thread: it need not be the one that trains
        if not torch.compiler.is_compiling():
            self._made(optimizer)
            self._watch_fsdp()
            self._counts.optimizers += 1
            self._counts.replays = 0
            if not self._counts.steps:
                self._signs()

    @contextmanager
    def _evaluated(self, optimizer: Optimizer, first: bool) -> Iterator[None]:
        self._closure_begins(optimizer, first)
        failed = True
        try:
            yield
            failed = False
        finally:
            self._closure_ends(optimizer, first, failed)

    def _around_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._in_backward:  # reentrant checkpoints run a backward inside a backward
            return original(*args, **kwargs)
        tensors = args[0] if args else kwargs.get("tensors")
        if type(tensors) is not Tensor and not isinstance(tensors, _REITERABLE):  # a generator can be read only once
            tensors = tuple(tensors)
            args, kwargs = ((tensors, *args[1:]), kwargs) if args else (args, {**kwargs, "tensors": tensors})
        self._in_backward = True
        if len(sys.modules) != self._foreign.modules:
            self._foreign.look()
        counts = self._counts
        counts.backwards += 1
        if not counts.steps and counts.backwards in (1, BACKWARDS_WITHOUT_STEP):
            self._signs()
        try:
            self._backward(tensors)
            return original(*args, **kwargs)
        except BaseException:
            self._backward_failed()
            raise
        finally:
            self._in_backward = False
            self._backward_over()

    def _around_replay(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        counts = self._counts
        counts.replays += 1
        self._replayed()
        if counts.replays == BACKWARDS_WITHOUT_STEP:
            self._signs()
        return original(*args, **kwargs)

    def _around_zero_grad(self, original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(owner, *args, **kwargs)
        # After a step no gradient is discarded; but modes of ours that Ctrl-C has left behind are removed.
        capture = self._meter.capture
        if (capture.micro_batches and not capture.stepped) or torch_api.len_torch_function_stack():
            self._zeroed(owner)
        return result

    def _around_norm(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tensors = args[0] if args else kwargs.pop("tensors")
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)  # it may be a generator
        norm = original(tensors, *args[1:], **kwargs)
        order = args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)
        self._clip(tensors, order, norm)
        self._norms_taken += 1
        return norm

    def _around_fsdp_clip(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        before = self._norms_taken
        norm = original(model, *args, **kwargs)
        if self._norms_taken == before:  # else the model is not sharded, and `nn.utils` has clipped it
            order = args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)
            self._clip([parameter.grad for parameter in model.parameters() if parameter.grad is not None], order, norm)
            self._clipped("max_norm", args[0] if args else kwargs.get("max_norm"))
        return norm

    def _around_clip(self, limit: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        by_place = (*args, None, None, None)[:3]
        self._clipped(limit, args[1] if len(args) > 1 else kwargs.get(limit), by_place[0], by_place[2])
        return result

    def _around_scale(self, original: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if scaler.is_enabled():
            self._scaled(scaler, outputs, result)
        return result

    def _around_unscale(self, original: Callable[..., Any], scaler: Any, optimizer: Any) -> Any:
        result = original(scaler, optimizer)
        self._unscaled(scaler)
        return result

    # Inside `Join` a process that has no more batches takes no more steps.
    def _around_join(self, begins: bool, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._uneven(begins)
        return original(*args, **kwargs)

    def _around_scaler_step(
        self, original: Callable[..., Any], scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        steps = self._counts.steps
        result = original(scaler, optimizer, *args, **kwargs)
        if self._counts.steps == steps and scaler.is_enabled():
            self._swallowed(scaler, optimizer)
        return result
