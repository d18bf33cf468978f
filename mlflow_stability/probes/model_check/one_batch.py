"""Runs one batch through a model, forward and backward, without changing anything.

Without a loss function, only what is beyond doubt is computed: the output's own loss, cross-entropy for whole numbers
as targets, the mean squared error for targets of the output's shape. Guarantees: parameters, gradients, buffers, random
numbers, attributes, hooks and training modes are afterwards what they were, to the last bit; a recording of `autolog()`
does not see it. Where that cannot be promised, nothing is run, and `reason` says why.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import Module, functional

from mlflow_stability.probes.forward.forward_rerun import (
    NotRunAgain,
    TrackedWrites,
    WrittenTensors,
    hooks_muted,
    is_ours,
    kept,
    mode_of_script,
    own_pass,
    random_numbers_kept,
)
from mlflow_stability.probes.forward.writable_state import WritableState
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.hooks.thread_state import untracked
from mlflow_stability.probes.inside.activation_statistics import (
    QUANTITIES,
    ActivationSample,
    OutputKind,
    nature_of,
    sample_of_output,
    statistics_of,
)
from mlflow_stability.probes.model_check.values import fetched
from mlflow_stability.probes.model_discovery import plain_name, unwrapped

LossFunction = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Any = None


@dataclass(frozen=True, slots=True)
class BatchLoss:
    loss: Tensor
    chance: float | Tensor | None = None
    level: str = ""
    """Describes guessing: ``chance for 10 classes``."""
    classes: int = 0


def batch_of(given: Any) -> Batch:
    """Read keyword arguments, a pair of inputs and targets, or inputs alone."""
    if isinstance(given, Mapping):
        return Batch((), dict(given), given)
    if isinstance(given, tuple | list) and len(given) == 2:
        inputs, target = given
        if isinstance(inputs, Mapping):
            return Batch((), dict(inputs), target)
        return Batch(tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, target)
    return Batch((given,), {})


def loss_of(output: Any, batch: Batch, function: LossFunction | None) -> BatchLoss | None:
    """Return the loss of an output, or None if it is unknown."""
    if function is not None:
        loss = function(output, batch.target) if batch.target is not None else function(output)
        return _with_chance(loss, output, batch.target, function)
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        scores = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        labels = batch.kwargs.get("labels")
        classes = scores.shape[-1] if isinstance(scores, Tensor) and scores.dim() > 1 else 0
        return _of_classes(own, classes) if _counts(labels) and classes > 1 else BatchLoss(own)
    if not isinstance(output, Tensor):
        return None
    target = batch.target
    if isinstance(target, Tensor) and _counts(target) and output.is_floating_point():
        if output.dim() >= 2 and output.shape[:-1] == target.shape:
            loss = functional.cross_entropy(output.flatten(0, -2), target.flatten().long())
            return _of_classes(loss, output.shape[-1])
        if output.dim() >= 2 and (output.shape[0], *output.shape[2:]) == tuple(target.shape):
            return _of_classes(functional.cross_entropy(output, target.long()), output.shape[1])
        return None
    if isinstance(target, Tensor) and target.is_floating_point() and target.shape == output.shape:
        return _of_numbers(functional.mse_loss(output, target), target)
    return BatchLoss(output) if output.numel() == 1 and output.requires_grad else None


def _with_chance(loss: Any, output: Any, target: Any, function: LossFunction) -> BatchLoss | None:
    if not isinstance(loss, Tensor):
        return None
    if loss.numel() != 1:
        loss = loss.mean()
    if not isinstance(target, Tensor) or not isinstance(output, Tensor):
        return BatchLoss(loss)
    mean = getattr(function, "reduction", "mean") == "mean"
    if mean and (isinstance(function, nn.CrossEntropyLoss) or function is functional.cross_entropy):
        return _of_classes(loss, output.shape[1] if output.dim() > 1 else output.shape[0])
    if mean and (isinstance(function, nn.MSELoss) or function is functional.mse_loss):
        return _of_numbers(loss, target)
    if mean and isinstance(function, nn.BCEWithLogitsLoss | nn.BCELoss):
        return BatchLoss(loss, math.log(2), "chance for yes or no", 2)
    return BatchLoss(loss)


def _of_classes(loss: Tensor, classes: int) -> BatchLoss:
    return BatchLoss(loss, math.log(classes), f"chance for {classes:,} classes", classes)


def _of_numbers(loss: Tensor, target: Tensor) -> BatchLoss:
    if target.numel() < 2:
        return BatchLoss(loss)
    return BatchLoss(loss, target.detach().float().var(correction=0), "predicting the mean of the targets")


def _counts(target: Any) -> bool:
    return isinstance(target, Tensor) and not target.is_floating_point() and target.dtype is not torch.bool


# Of one batch, and of copies of the tensors that it writes to.
MAX_SECONDS, MAX_BYTES = 600.0, 16 * 2**30
MAX_SAMPLE = 2**14  # values of one output
ZERO_SHARE = "zero_share"  # not a signal of recordings


@dataclass(slots=True)
class BatchPass:
    reason: str = ""
    """Why there are no results, or no loss; empty: there are."""
    error: str = ""
    """What the model or the loss raised."""
    error_place: str = ""
    """The innermost module that was running."""
    loss: float | None = None
    chance: float | None = None
    level: str = ""
    classes: int = 0
    called: list[str] = field(default_factory=list)
    """The modules, in the order in which their calls ended."""
    outputs: dict[str, dict[str, float]] = field(default_factory=dict)
    """Statistics of the first output of each module, by quantity."""
    grad_norms: dict[str, float] | None = None
    """By parameter on which the loss depends; None: there are no gradients."""


def run_batch(model: Module, batch_input: Any, function: LossFunction | None) -> BatchPass:
    inner, result = unwrapped(model), BatchPass()
    parameters, buffers = dict(Module.named_parameters(inner)), dict(Module.named_buffers(inner))
    if any(parameter.is_meta for parameter in (*parameters.values(), *buffers.values())):
        result.reason = "parameters on the meta device have no values"
        return result
    device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
    batch = batch_of(_moved(batch_input, device))
    # Attributes of a loss function are restored if it is a module.
    loss_module = function if isinstance(function, Module) else None
    state = WritableState(inner, (*batch.args, loss_module, batch.target), batch.kwargs, with_hooks=True)
    mode = mode_of_script()
    if mode or state.refusal:
        result.reason = f"{mode} is active" if mode else f"it might change the model: {state.refusal}"
        return result
    written = WrittenTensors(MAX_SECONDS, MAX_BYTES)
    watch = _Watch(inner)
    modes = [(module, module.training) for module in Module.modules(inner)]
    devices = [parameter.device for parameter in (*parameters.values(), *buffers.values())]
    loss: BatchLoss | None = None
    gradients: dict[str, Tensor] = {}
    with (
        random_numbers_kept(devices),
        torch.compiler.set_stance("force_eager"),
        own_pass(),
        MODULE_CALLS.muted(),
        hooks_muted(inner, is_ours),
    ):
        try:
            with kept(state, written), torch.enable_grad(), watch.hooks():
                if not inner.training:  # with dropout and running statistics
                    for module, _ in modes:
                        module.training = True
                # Parameters share memory with those of the model, but no gradient or hook; buffers are copies.
                stand_ins = {key: own.detach().requires_grad_(own.requires_grad) for key, own in parameters.items()}
                stand_ins |= {key: own.detach().clone() for key, own in buffers.items()}
                written.stand_ins([stand_ins[name] for name in buffers], watched=False)
                with TrackedWrites(written):
                    output = functional_call(inner, stand_ins, batch.args, dict(batch.kwargs))
                    watch.running.clear()
                    loss = loss_of(output, batch, function)
                    if loss is not None and loss.loss.requires_grad:
                        # Also of code that holds the parameter itself.
                        names = [name for name, part in parameters.items() if part.requires_grad]
                        asked = [*(stand_ins[name] for name in names), *(parameters[name] for name in names)]
                        values = torch.autograd.grad(loss.loss, asked, allow_unused=True)
                        for name, own, original in zip(names, values[: len(names)], values[len(names) :], strict=True):
                            parts = [part for part in (own, original) if part is not None]
                            if parts:
                                gradients[name] = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        except NotRunAgain as error:
            result.reason = f"it might change the model: {error}"
            return result
        except Exception as error:  # of the model or the loss: the result of the check
            result.error = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
            result.error_place = watch.innermost()
        finally:
            for module, training in modes:
                module.training = training
    _read(result, watch, loss, gradients)
    return result


class _Watch:
    def __init__(self, model: Module) -> None:
        named = Module.named_modules(model)
        self._names = {id(module): plain_name(name) or type(model).__name__ for name, module in named}
        self._modules = list(Module.modules(model))
        self._natures = {id(module): nature_of(module) or OutputKind() for module in self._modules}
        self._axes: dict[torch.Size, int] = {}
        self.called: list[str] = []
        self.running: list[str] = []
        self.samples: dict[str, tuple[OutputKind, ActivationSample]] = {}

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        handles = []
        try:
            for module in self._modules:
                handles.append(module.register_forward_pre_hook(self._before))
                handles.append(module.register_forward_hook(self._after))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def innermost(self) -> str:
        return self.running[-1] if self.running else ""

    def _before(self, module: Module, _args: Any) -> None:
        self.running.append(self._names[id(module)])

    def _after(self, module: Module, _args: Any, output: Any) -> None:
        name = self._names[id(module)]
        if self.running:
            self.running.pop()
        self.called.append(name)
        nature = self._natures[id(module)]
        with untracked():
            sample = None if name in self.samples else sample_of_output(output, nature, self._axes, MAX_SAMPLE)
            if sample is not None:
                self.samples[name] = nature, sample


def _read(result: BatchPass, watch: _Watch, loss: BatchLoss | None, gradients: Mapping[str, Tensor]) -> None:
    result.called = watch.called
    result.outputs = _statistics(watch.samples)
    if loss is not None:
        chance = loss.chance if isinstance(loss.chance, Tensor) else None
        values = fetched([loss.loss.detach(), *([chance] if chance is not None else [])])
        result.loss = values[0]
        result.chance = values[1] if chance is not None else loss.chance if isinstance(loss.chance, float) else None
        result.level, result.classes = loss.level, loss.classes
    if gradients:
        with untracked():
            wide = {name: grad.to_dense() if grad.is_sparse else grad for name, grad in gradients.items()}
            norms = fetched([_norm(gradient) for gradient in wide.values()])
        result.grad_norms = dict(zip(wide, norms, strict=True))
    elif not result.error:
        without_loss = "no loss is known for this output; give loss=, and a batch of inputs and targets"
        result.reason = without_loss if loss is None else "the loss depends on no trainable parameter"


def _norm(gradient: Tensor) -> Tensor:
    # torch refuses a type that would narrow the values; halves overflow in their own.
    norm: Tensor = torch.linalg.vector_norm(gradient, 2.0, dtype=torch.float32 if gradient.itemsize < 4 else None)
    return norm


def _statistics(samples: Mapping[str, tuple[OutputKind, ActivationSample]]) -> dict[str, dict[str, float]]:
    by_device: dict[torch.device, list[str]] = {}
    for name, (_, sample) in samples.items():
        by_device.setdefault(sample.values.device, []).append(name)
    result: dict[str, dict[str, float]] = {}
    for names in by_device.values():
        with untracked():
            table = statistics_of([samples[name][1] for name in names], [samples[name][0] for name in names])
            zeros = torch.stack([(samples[name][1].values == 0).mean(dtype=torch.float32) for name in names])
            numbers = iter(fetched(torch.cat((table, zeros[:, None]), 1).flatten().unbind()))
        for name in names:
            result[name] = {quantity: next(numbers) for quantity in (*QUANTITIES, ZERO_SHARE)}
    return {name: result[name] for name in samples}


def _moved(given: Any, device: torch.device) -> Any:

    def to_device(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) and value.device != device else value

    return torch_api.tree_map(to_device, given)
