"""Run the batch of a broken step again, to tell data and numerics from hardware.

Guarantees: random numbers are those of the first run and restored afterwards, as is all state that the model and its
hooks lead to; where that cannot be restored, nothing is run. Parameters and buffers have stand-ins: they get no
gradients, their hooks are not called, and the modules have their own tensors again afterwards. The backward pass starts
from the gradient that came back the first time. Limited in time. Hardware is blamed only where this run changed no
state, as a model that keeps state between calls does.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from mlflow_stability.probes.forward.compiled_models import compiled
from mlflow_stability.probes.forward.forward_rerun import (
    MAX_SECONDS,
    NotRunAgain,
    WrittenTensors,
    hooks_muted,
    kept,
    mode_of_script,
    random_numbers_kept,
)
from mlflow_stability.probes.forward.writable_state import WritableState
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.hooks.thread_state import raised_by_script
from mlflow_stability.probes.model_discovery import unwrapped
from mlflow_stability.recovery.nan_origin.batch_capture import (
    CapturedBatch,
    CapturedLoss,
    facts_of_tensor,
    inputs_of,
    tensors_in,
)
from mlflow_stability.recovery.nan_origin.nan_trace import ModulePath, NanOrigin, NanTrace, has_numbers
from mlflow_stability.recovery.nan_origin.origin_checks import loss_operations, nonfinite_weight, suspects
from mlflow_stability.recovery.state.host_copy import is_finite

MOST_REPLAYS = 4  # limit of passes run again where none is known to have broken
MOVED_ON = (
    "but the model keeps state between calls or draws its own random numbers, which may have differed the first time"
)
NOT_COMPILED = "but it ran uncompiled, whose numbers differ slightly"


def replay_step(
    passes: Sequence[CapturedBatch],
    loss: CapturedLoss | None = None,
    optimizers: Sequence[Optimizer] = (),
    seconds: float = MAX_SECONDS,
) -> tuple[CapturedBatch, Replay]:
    """Run the pass of a step again that broke; if unknown, the last ones until one breaks, for at most `seconds`."""
    until = time.perf_counter() + seconds
    shown = next((batch for batch in passes if _is_known_broken(batch)), None)
    tried = [shown] if shown is not None else list(reversed(passes))[:MOST_REPLAYS]
    first: tuple[CapturedBatch, Replay] | None = None
    for batch in tried:
        if first is not None and time.perf_counter() > until:
            break
        replay = replay_batch(batch, loss if batch is passes[-1] else None, optimizers, until - time.perf_counter())
        if replay.origin is not None:
            return batch, replay
        first = first or (batch, replay)
    if first is None:
        raise ValueError("replay_step needs at least one forward pass, got none.")
    return first


def replay_batch(
    batch: CapturedBatch,
    loss: CapturedLoss | None = None,
    optimizers: Sequence[Optimizer] = (),
    seconds: float = MAX_SECONDS,
) -> Replay:
    """Run one pass again; the weights should be those from before the broken step.

    `loss`: what backward was called on. `optimizers`: those that may have written into the weights.
    """
    root = batch.root()
    if root is None or batch.was_changed:
        return _not_run("the model is gone" if root is None else "the script changed it in place")
    model, before = unwrapped(root), sys.exc_info()[1]
    state = WritableState(model, batch.args, batch.kwargs, with_hooks=True)
    mode = mode_of_script()
    if state.refusal or mode:
        return _not_run(state.refusal or f"{mode} is active and would see it run twice")
    written = WrittenTensors(seconds)
    try:
        with _as_it_was(batch, model), mute_observers(model), kept(state, written):
            states = _random_states()
            replay = Rerun(model, batch, loss, optimizers, written).replay()
            drawn = states != _random_states()
    except NotRunAgain as given_up:
        return _not_run(str(given_up))
    except Exception as error:  # raised by the script's own code, or out of memory
        script_error = raised_by_script(error, before)
        if script_error is not None:
            raise script_error from None
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        return Replay("cannot tell", f"The batch could not be run again ({why}).")
    if replay.conclusion != "hardware":
        return replay
    # A compiled function in it may not be known yet.
    eager = NOT_COMPILED if compiled(root) != "no" or torch_api.has_compiled() else ""
    doubt = MOVED_ON if drawn or written.moved else eager
    if not doubt:
        return replay
    message = f"The same batch with the same random numbers is finite this time, {doubt}."
    return replace(replay, conclusion="cannot tell", message=message)


def _not_run(why: str) -> Replay:
    return Replay("cannot tell", f"The batch was not run again: {why}.")


def _random_states() -> tuple[Any, ...]:
    """Return the state of Python's and numpy's shared generators; that of the first run is unknown."""
    numpy: Any = sys.modules.get("numpy.random")
    state = () if numpy is None else numpy.get_state()
    return random.getstate(), *(part.tobytes() if hasattr(part, "tobytes") else part for part in state)


@contextmanager
def _as_it_was(batch: CapturedBatch, model: Module) -> Iterator[None]:
    """Inside, random numbers are those of the first run; no compiler, no warnings."""
    host, device = batch.random
    devices = [batch.device, *(tensor.device for tensor in (*Module.parameters(model), *Module.buffers(model)))]
    with warnings.catch_warnings(), random_numbers_kept(devices), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")  # they were shown in the first run
        if torch_api.is_dynamo_loaded():
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch.set_rng_state(host)
        if device is not None:
            torch.get_device_module(batch.device).set_rng_state(device, batch.device)
        yield


def _is_known_broken(batch: CapturedBatch) -> bool:
    """Whether a pass is known to have broken, without running it again."""
    if not all(may_be_intended(output) for output in batch.outputs if output is not None):
        return True
    return not all(is_finite(gradient) for several in batch.gradients.values() for gradient in several)


@contextmanager
def stand_ins_installed(model: Module, with_gradients: bool) -> Iterator[None]:
    """Inside, the model has stand-ins of its weights, and copies of its buffers."""
    stand_ins: dict[int, Tensor] = {}
    originals = [(module, _OwnTensors(module)) for module in Module.modules(model)]
    try:
        for module, own in originals:
            own.replace(module, stand_ins, with_gradients)
        yield
    finally:
        for module, own in originals:
            own.put_back(module)


@contextmanager
def mute_observers(model: Module) -> Iterator[None]:
    """Inside, our observers do not see calls of the model; the script's hooks run, and are the same afterwards."""
    with hooks_muted(model, which=lambda _: False), MODULE_CALLS.muted():
        yield


def detached_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Detach arguments from the autograd graph that they came with."""

    def detach(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        return value.detach().requires_grad_()

    detached: tuple[tuple[Any, ...], dict[str, Any]] = torch_api.tree_map(detach, (args, dict(kwargs)))
    return detached


def _stand_in(own: Tensor, with_gradient: bool) -> Tensor:
    """Share the memory. A parameter stays a parameter: a model may write `self.weight += 1`."""
    if type(own) is Parameter:
        return Parameter(own.detach(), requires_grad=with_gradient)
    return own.detach().requires_grad_(with_gradient)


class _OwnTensors:
    def __init__(self, module: Module) -> None:
        self._parameters = dict(module._parameters)
        self._buffers = dict(module._buffers)
        self._flat: list[Any] | None = module.__dict__.get("_flat_weights")
        self._compiled = module.__dict__.get("_compiled_call_impl")

    def replace(self, module: Module, stand_ins: dict[int, Tensor], with_gradients: bool) -> None:
        for name, own in self._parameters.items():
            if own is not None:
                if id(own) not in stand_ins:
                    stand_ins[id(own)] = _stand_in(own, with_gradients and own.requires_grad)
                module._parameters[name] = stand_ins[id(own)]  # type: ignore[assignment]
        for name, buffer in self._buffers.items():
            if buffer is not None:
                if id(buffer) not in stand_ins:
                    stand_ins[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = stand_ins[id(buffer)]
        if self._flat is not None:  # torch's recurrent modules keep a list of their weights beside
            module.__dict__["_flat_weights"] = [stand_ins.get(id(weight), weight) for weight in self._flat]
        if self._compiled is not None:
            module.__dict__["_compiled_call_impl"] = None

    def put_back(self, module: Module) -> None:
        module._parameters.clear()
        module._parameters.update(self._parameters)
        module._buffers.clear()
        module._buffers.update(self._buffers)
        if self._flat is not None:
            module.__dict__["_flat_weights"] = self._flat
        if self._compiled is not None:
            module.__dict__["_compiled_call_impl"] = self._compiled


Conclusion = Literal["data or numerics", "weights", "hardware", "after the model", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Replay:
    conclusion: Conclusion
    message: str
    first_broken: str = ""  # first module whose output is not finite this time
    origin: NanOrigin | None = None  # origin of the first non-finite value, if known


class Rerun:
    def __init__(
        self,
        model: Module,
        batch: CapturedBatch,
        loss: CapturedLoss | None,
        optimizers: Sequence[Optimizer],
        written: WrittenTensors,
    ) -> None:
        self._model = model
        self._batch = batch
        self._loss = loss
        self._optimizers = optimizers
        self._path = ModulePath()
        self._written = written
        self._trace = NanTrace(self._path, written)
        self._first_broken = ""

    def replay(self) -> Replay:
        """Run it forward, and backward where that is finite."""
        batch = self._batch
        was_finite = all(may_be_intended(output) for output in batch.outputs if output is not None)
        weights: dict[str, Tensor] = dict(Module.named_parameters(self._model))
        with stand_ins_installed(self._model, was_finite):
            # Writing to a copy of a buffer is no change; but a model that reads one would be another the next time.
            for module in Module.modules(self._model):
                buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
                self._written.stand_ins(buffers, watched=not isinstance(module, torch_api.BatchNorm))
            broken_weights = self._register_nonfinite(weights)
            outputs = self._forward(was_finite)
            broken = next((output for output in outputs if not may_be_intended(output)), None)
            if broken is not None:
                return self._not_finite_again(self._trace.origin_of(broken), broken_weights)
            if not was_finite:
                message = "The same batch with the same random numbers is finite this time: check the hardware first."
                return Replay("hardware", message)
            gradients = [_sum(batch.gradients.get(number, [])) for number in range(len(outputs))]
            if any(gradient is not None and not is_finite(gradient) for gradient in gradients):
                return self._after_the_model(outputs)
            origin, real = self._backward(outputs, gradients)
        if origin is not None:
            passed = "gradient" if real else "gradient of ones instead of the recorded one"
            message = f"Forward pass finite; backward pass of the same batch, from a finite {passed}, non-finite."
            return Replay("data or numerics", message, origin=origin)
        if not batch.all_outputs:
            return Replay("cannot tell", "The output is finite this time; the first output was not kept.")
        message = "The model's output was finite both times: check the labels, the loss function and the backward pass."
        return Replay("after the model", message)

    def _register_nonfinite(self, weights: dict[str, Tensor]) -> list[str]:
        """Register inputs, weights and buffers that are already non-finite; return the names of the weights."""
        origins: list[tuple[Tensor, NanOrigin]] = []
        broken: list[str] = []
        for name, stand_in in Module.named_parameters(self._model):
            if has_numbers(stand_in) and not is_finite(stand_in):
                origins.append((stand_in, nonfinite_weight(name, stand_in, self._optimizers, weights.get(name))))
                broken.append(name)
        for name, buffer in Module.named_buffers(self._model):
            if has_numbers(buffer) and not is_finite(buffer):
                facts = facts_of_tensor(name, buffer)
                module, _, own = name.rpartition(".")
                origins.append((buffer, NanOrigin("buffer", module, own, name=name, output=facts, meant=not facts.nan)))
        for name, tensor in inputs_of(self._batch):
            if has_numbers(tensor) and not is_finite(tensor):
                facts = facts_of_tensor(name, tensor)
                origins.append((tensor, NanOrigin("input", name=name, output=facts, meant=_is_mask(tensor))))
        self._trace.register(origins)
        return broken

    def _forward(self, with_gradients: bool) -> list[Tensor]:
        on, dtype = self._batch.autocast
        args, kwargs = detached_arguments(self._batch.args, self._batch.kwargs)
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(with_gradients),
            torch.autocast(self._batch.device.type, dtype=dtype, enabled=on, cache_enabled=False),
            self._path.of(self._model),
            _first_broken(self._model) as broken,
        ):
            outputs = self._trace.run(lambda: self._model(*args, **kwargs))
        self._first_broken = broken[0] if broken else ""
        return [tensor for tensor in tensors_in(outputs) if tensor.is_floating_point() or tensor.is_complex()]

    def _backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> tuple[NanOrigin | None, bool]:
        """Return where the backward pass breaks, and whether it started from the recorded gradient."""
        real = any(gradient is not None for gradient in gradients)
        start = [
            (output, torch.ones_like(output) if gradient is None else gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad and (gradient is not None or not real)
        ]
        weights = [weight for weight in Module.parameters(self._model) if weight.requires_grad]
        if not start or not weights:
            return None, real
        origins: list[NanOrigin] = []

        def look(gradient: Tensor) -> Tensor:
            if not is_finite(gradient):
                origins.append(self._trace.origin_of(gradient) or NanOrigin("backward"))
            return gradient.new_zeros(()).expand_as(gradient)  # keep no gradients

        for weight in weights:
            weight.register_hook(look)  # type: ignore[no-untyped-call]
        self._trace.run(
            lambda: torch.autograd.grad(
                [output for output, _ in start], weights, [gradient for _, gradient in start], allow_unused=True
            )
        )
        return min(origins, key=lambda origin: origin.number, default=None), real

    def _not_finite_again(self, origin: NanOrigin | None, broken_weights: Sequence[str]) -> Replay:
        first = self._first_broken
        if origin is not None and origin.source in ("weight", "optimizer"):
            more = len(broken_weights) - 1
            weight = origin.output.name if origin.output is not None else broken_weights[0]
            others = "" if not more else f", and {more} more"
            message = f"The weights were already non-finite: {weight}{others}."
            return Replay("weights", message, first, origin)
        broken_input = next((name for name, tensor in inputs_of(self._batch) if not is_finite(tensor)), None)
        where = f"first in {first}" if first else "in its output"
        what = f"Its input {broken_input} is non-finite." if broken_input else "Its inputs are finite."
        message = f"The same batch is non-finite again, {where}. {what}"
        return Replay("data or numerics", message, first, origin)

    def _after_the_model(self, outputs: Sequence[Tensor]) -> Replay:
        loss = self._loss
        operations = () if loss is None else loss_operations(loss.node, self._batch.nodes)
        breaking = suspects(operations)
        broken = loss is not None and not is_finite(loss.value)
        hooked = self._batch.has_output_hook and not broken
        origin = NanOrigin(
            "loss",
            operation="" if hooked else ", ".join(breaking or operations),
            name="loss" if broken else "hook" if hooked else "gradient" if loss is not None else "",
            inputs=tuple(facts_of_tensor("output", output) for output in outputs[:1]),
        )
        message = (
            "The model's output was finite both times, the gradient from the loss function was not: check "
            "the labels and the loss function."
        )
        return Replay("after the model", message, origin=origin)


@contextmanager
def _first_broken(model: Module) -> Iterator[list[str]]:
    """Collect the names of modules whose outputs are not finite, in the order in which they end."""
    names: list[str] = []

    def watch(name: str) -> Any:
        def after(_module: Module, _args: Any, outputs: Any) -> None:
            if not names and not all(may_be_intended(output) for output in tensors_in(outputs)):
                names.append(name)

        return after

    handles = [module.register_forward_hook(watch(name)) for name, module in Module.named_modules(model) if name]
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()


def _sum(gradients: Sequence[Tensor]) -> Tensor | None:
    with torch.no_grad():
        return sum(gradients[1:], start=gradients[0]) if gradients else None


def may_be_intended(output: Tensor) -> bool:
    """Whether an output may be intended: scores masked by minus infinity are, a loss of minus infinity is not."""
    if output.numel() == 1 or not output.is_floating_point():
        return is_finite(output)
    return _is_mask(output)


def _is_mask(tensor: Tensor) -> bool:
    return not bool((tensor.detach().isnan() | tensor.detach().isposinf()).any())
