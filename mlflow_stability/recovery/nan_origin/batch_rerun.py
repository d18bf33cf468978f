"""Runs a batch that broke once more, forward and backward, and says what came of it.

In: a model with the random numbers of the first time, and a captured batch. Out: a `Replay`. Guarantees: weights and
buffers have stand-ins, and what else is written to is noted; the backward pass begins with the gradient that came back
the first time, goes to the stand-ins alone, and keeps none of the gradients that it computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.rerun import WrittenTensors
from mlflow_stability.recovery.nan_origin.batch_capture import CapturedBatch, CapturedLoss
from mlflow_stability.recovery.nan_origin.batch_facts import facts_of_tensor, inputs_of
from mlflow_stability.recovery.nan_origin.code_location import ModulePath
from mlflow_stability.recovery.nan_origin.nan_trace import NanOrigin, NanTrace, is_finite
from mlflow_stability.recovery.nan_origin.nested_tensors import tensors_in
from mlflow_stability.recovery.nan_origin.origin_checks import loss_operations, nonfinite_weight, suspects
from mlflow_stability.recovery.nan_origin.stand_in_weights import apart, shadowed

Conclusion = Literal["data or numerics", "weights", "hardware", "after the model", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of the second time."""

    conclusion: Conclusion
    message: str
    """The conclusion in one sentence."""
    finite: bool | None
    """Whether all that came out of the model is finite this time; None: it could not be run."""
    first_broken: str = ""
    """The first module whose output is not finite this time."""
    origin: NanOrigin | None = None
    """Where the first number that is not finite was born; None where it is not known."""


class Rerun:
    """One replay."""

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
        """Run it forward, and backward where that is sound."""
        batch = self._batch
        was_finite = all(sound(each) for each in batch.outputs if each is not None)
        weights: dict[str, Tensor] = dict(Module.named_parameters(self._model))
        with shadowed(self._model, was_finite):
            self._own_buffers()
            broken_weights = self._begin_with_what_is_broken(weights)
            outputs = self._forward(was_finite)
            broken = next((each for each in outputs if not sound(each)), None)
            if broken is not None:
                return self._not_finite_again(self._trace.origin_of(broken), broken_weights)
            if not was_finite:
                message = "The same batch with the same random numbers is finite this time: check the hardware first."
                return Replay("hardware", message, True)
            gradients = [_sum(batch.gradients.get(number, [])) for number in range(len(outputs))]
            if any(each is not None and not is_finite(each) for each in gradients):
                return self._after_the_model(outputs)
            origin, real = self._backward(outputs, gradients)
        if origin is not None:
            passed = "gradient" if real else "gradient of ones instead of the recorded one"
            said = f"Forward pass finite; backward pass of the same batch, from a finite {passed}, non-finite."
            return Replay("data or numerics", said, True, origin=origin)
        return self._sound_again()

    def _own_buffers(self) -> None:
        """What the copies of buffers take up is no change; but a model that reads it would be another the next time."""
        for module in Module.modules(self._model):
            own = [each for each in module._buffers.values() if each is not None]
            self._written.stand_ins(own, watched=not isinstance(module, torch_api.BatchNorm))

    def _begin_with_what_is_broken(self, weights: dict[str, Tensor]) -> list[str]:
        """Inputs, weights and buffers that are not finite; gives the names of the weights."""
        origins: list[tuple[Tensor, NanOrigin]] = []
        broken: list[str] = []
        for name, stand_in in Module.named_parameters(self._model):
            if _has_numbers(stand_in) and not is_finite(stand_in):
                origins.append((stand_in, nonfinite_weight(name, stand_in, self._optimizers, weights.get(name))))
                broken.append(name)
        for name, buffer in Module.named_buffers(self._model):
            if _has_numbers(buffer) and not is_finite(buffer):
                facts = facts_of_tensor(name, buffer)
                module, _, own = name.rpartition(".")
                origins.append((buffer, NanOrigin("buffer", module, own, name=name, output=facts, meant=not facts.nan)))
        for name, each in inputs_of(self._batch):
            if _has_numbers(each) and not is_finite(each):
                facts = facts_of_tensor(name, each)
                origins.append((each, NanOrigin("input", name=name, output=facts, meant=_only_rules_out(each))))
        self._trace.begins_with(origins)
        return broken

    def _forward(self, with_gradients: bool) -> list[Tensor]:
        on, dtype = self._batch.autocast
        args, kwargs = apart(self._batch.args, self._batch.kwargs)
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(with_gradients),
            torch.autocast(self._batch.device.type, dtype=dtype, enabled=on, cache_enabled=False),
            self._path.of(self._model),
            _first_broken(self._model) as found,
        ):
            outputs = self._trace.run(lambda: self._model(*args, **kwargs))
        self._first_broken = found[0] if found else ""
        return [each for each in tensors_in(outputs) if each.is_floating_point() or each.is_complex()]

    def _backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> tuple[NanOrigin | None, bool]:
        """Where the backward pass breaks; and whether it began with the gradient that really came back."""
        real = any(each is not None for each in gradients)
        start = [
            (output, torch.ones_like(output) if gradient is None else gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad and (gradient is not None or not real)
        ]
        weights = [each for each in Module.parameters(self._model) if each.requires_grad]
        if not start or not weights:
            return None, real
        origins: list[NanOrigin] = []

        def look(gradient: Tensor) -> Tensor:
            if not is_finite(gradient):
                origins.append(self._trace.origin_of(gradient) or NanOrigin("backward"))
            return gradient.new_zeros(()).expand_as(gradient)  # of the gradients themselves none is kept

        for each in weights:
            each.register_hook(look)  # type: ignore[no-untyped-call]
        self._trace.run(
            lambda: torch.autograd.grad(
                [each for each, _ in start], weights, [each for _, each in start], allow_unused=True
            )
        )
        return min(origins, key=lambda each: each.number, default=None), real

    def _not_finite_again(self, origin: NanOrigin | None, broken_weights: Sequence[str]) -> Replay:
        first = self._first_broken
        if origin is not None and origin.source in ("weight", "optimizer"):
            more = len(broken_weights) - 1
            weight = origin.output.name if origin.output is not None else broken_weights[0]
            others = "" if not more else f", and {more} more"
            said = f"The weights were already non-finite: {weight}{others}."
            return Replay("weights", said, False, first, origin)
        broken_input = next((name for name, each in inputs_of(self._batch) if not is_finite(each)), None)
        where = f"first in {first}" if first else "in its output"
        what = f"Its input {broken_input} is non-finite." if broken_input else "Its inputs are finite."
        message = f"The same batch is non-finite again, {where}. {what}"
        return Replay("data or numerics", message, False, first, origin)

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
            inputs=tuple(facts_of_tensor("output", each) for each in outputs[:1]),
        )
        message = (
            "The model's output was finite both times, the gradient from the loss function was not: check "
            "the labels and the loss function."
        )
        return Replay("after the model", message, True, origin=origin)

    def _sound_again(self) -> Replay:
        if not self._batch.all_outputs:
            return Replay("cannot tell", "The output is finite this time; the first output was not kept.", True)
        message = "The model's output was finite both times: check the labels, the loss function and the backward pass."
        return Replay("after the model", message, True)


@contextlib.contextmanager
def _first_broken(model: Module) -> Iterator[list[str]]:
    """The names of the modules whose outputs are not finite, in the order in which they end."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def after(_module: Module, _args: Any, outputs: Any) -> None:
            if not found and not all(sound(each) for each in tensors_in(outputs)):
                found.append(name)

        return after

    handles = [each.register_forward_hook(watch(name)) for name, each in Module.named_modules(model) if name]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _sum(gradients: Sequence[Tensor]) -> Tensor | None:
    if not gradients:
        return None
    with torch.no_grad():
        return sum(gradients[1:], start=gradients[0])


def _has_numbers(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 0


def _only_rules_out(tensor: Tensor) -> bool:
    """Whether all that is not finite in it is minus infinity, as in a mask."""
    return not bool((tensor.detach().isnan() | tensor.detach().isposinf()).any())


def sound(output: Tensor) -> bool:
    """Whether an output can be meant: scores that are ruled out by minus infinity can, a loss of it cannot."""
    if output.numel() == 1 or not output.is_floating_point():
        return is_finite(output)
    with torch.no_grad():
        return not bool((output.isnan() | output.isposinf()).any())
