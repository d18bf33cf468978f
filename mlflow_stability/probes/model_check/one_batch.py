"""One batch through a model, forward and backward, without changing anything.

In: a model, a batch, the loss function. Out: loss, gradient norms, the modules that were called, statistics of their
outputs. Guarantees: parameters, gradients, buffers, random numbers, attributes, hooks and training modes are
afterwards what they were, to the last bit; a recording of `autolog()` does not see it. Where that cannot be promised,
nothing is run, and `reason` says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module

from mlflow_stability.probes.activations.activation_statistics import (
    QUANTITIES,
    ActivationSample,
    OutputKind,
    axis_of,
    nature_of,
    output_tensor,
    sample_of,
    statistics_of,
)
from mlflow_stability.probes.hooks import MODULE_CALLS, torch_api
from mlflow_stability.probes.hooks.untracked_ops import untracked
from mlflow_stability.probes.model_check.batch_loss import BatchLoss, LossFunction, batch_of, loss_of
from mlflow_stability.probes.model_check.values import fetched
from mlflow_stability.probes.objects.module_names import plain_name, unwrapped
from mlflow_stability.probes.rerun.forward_rerun import (
    hooks_muted,
    is_ours,
    kept,
    mode_of_script,
    own_pass,
    random_numbers_kept,
)
from mlflow_stability.probes.rerun.writable_state import WritableState
from mlflow_stability.probes.rerun.written_tensors import NotRunAgain, TrackedWrites, WrittenTensors
from mlflow_stability.probes.step.readback import Readback

MOST_SECONDS, MOST_BYTES = 600.0, 16 * 2**30
"""What one batch may take, and what of the tensors that it writes to may be copied."""
QUOTA = 2**14
"""How many values of one output its statistics are made of."""
ZERO_SHARE = "zero_share"
"""The share of zeros of one output, which is no signal of a recording."""


@dataclass(slots=True)
class BatchPass:
    """What one batch showed."""

    reason: str = ""
    """Why there is nothing, or no loss; empty: there is."""
    error: str = ""
    """What the model or the loss raised."""
    error_place: str = ""
    """The innermost module that was running then."""
    loss: float | None = None
    chance: float | None = None
    level: str = ""
    classes: int = 0
    called: list[str] = field(default_factory=list)
    """The modules, in the order in which their calls ended."""
    outputs: dict[str, dict[str, float]] = field(default_factory=dict)
    """Statistics of the first output of each module, by quantity."""
    grad_norms: dict[str, float] | None = None
    """By parameter; a parameter that the loss does not depend on is missing. None: there are no gradients."""


def run_batch(model: Module, given: Any, function: LossFunction | None) -> BatchPass:
    """Run it, and leave everything as it was."""
    inner, found = unwrapped(model), BatchPass()
    parameters, buffers = dict(Module.named_parameters(inner)), dict(Module.named_buffers(inner))
    if any(each.is_meta for each in (*parameters.values(), *buffers.values())):
        found.reason = "parameters on the meta device have no values"
        return found
    device = next((each.device for each in parameters.values()), torch.device("cpu"))
    batch = batch_of(_moved(given, device))
    # Of a loss function whose attributes can be seen, they are restored; any other was given to be called.
    loss_module = function if isinstance(function, Module) else None
    state = WritableState(inner, (*batch.args, loss_module, batch.target), batch.kwargs, with_hooks=True)
    mode = mode_of_script()
    if mode or state.refusal:
        found.reason = f"{mode} is active" if mode else f"it might change the model: {state.refusal}"
        return found
    written = WrittenTensors(MOST_SECONDS, MOST_BYTES)
    watch = _Watch(inner)
    modes = [(each, each.training) for each in Module.modules(inner)]
    devices = [each.device for each in (*parameters.values(), *buffers.values())]
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
                if not inner.training:  # what training does, dropout and running statistics included
                    for each, _ in modes:
                        each.training = True
                stand_ins = _stand_ins(parameters, buffers)
                written.stand_ins([stand_ins[name] for name in buffers], watched=False)
                with TrackedWrites(written):
                    output = functional_call(inner, stand_ins, batch.args, dict(batch.kwargs))
                    watch.running.clear()
                    loss = loss_of(output, batch, function)
                    if loss is not None and loss.loss.requires_grad:
                        gradients = _gradients(loss.loss, parameters, stand_ins)
        except NotRunAgain as error:
            found.reason = f"it might change the model: {error}"
            return found
        except Exception as error:  # of the model or the loss: it is what is wrong with them
            found.error = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
            found.error_place = watch.innermost()
        finally:
            for each, training in modes:
                each.training = training
    _read(found, watch, loss, gradients)
    return found


def _stand_ins(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters that share memory with those of the model, and nothing else: no gradient, no hook; copied buffers."""
    found = {name: each.detach().requires_grad_(each.requires_grad) for name, each in parameters.items()}
    return found | {name: each.detach().clone() for name, each in buffers.items()}


def _gradients(loss: Tensor, parameters: Mapping[str, Tensor], stand_ins: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by parameter, also of code that holds the parameter itself."""
    names = [name for name, each in parameters.items() if each.requires_grad]
    asked = [*(stand_ins[name] for name in names), *(parameters[name] for name in names)]
    found = torch.autograd.grad(loss, asked, allow_unused=True)
    gradients: dict[str, Tensor] = {}
    for name, one, other in zip(names, found[: len(names)], found[len(names) :], strict=True):
        parts = [each for each in (one, other) if each is not None]
        if parts:
            gradients[name] = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return gradients


class _Watch:
    """Which modules are called, and what they put out."""

    def __init__(self, model: Module) -> None:
        self._names = {id(each): plain_name(name) or type(model).__name__ for name, each in Module.named_modules(model)}
        self._modules = list(Module.modules(model))
        self._natures = {id(each): nature_of(each) or OutputKind() for each in self._modules}
        self._axes: dict[torch.Size, int] = {}
        self.called: list[str] = []
        self.running: list[str] = []
        self.samples: dict[str, tuple[OutputKind, ActivationSample]] = {}

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """With hooks on every module, and without them afterwards."""
        handles = []
        try:
            for each in self._modules:
                handles.append(each.register_forward_pre_hook(self._before))
                handles.append(each.register_forward_hook(self._after))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def innermost(self) -> str:
        """The module that was running when an exception came."""
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
            tensor = output_tensor(output)
            if name not in self.samples and tensor is not None and tensor.is_floating_point() and tensor.numel():
                axis = axis_of(tensor, nature, self._axes)
                if axis is not None and nature.axis is not None:
                    self._axes[tensor.shape] = axis
                self.samples[name] = nature, sample_of(tensor, nature, axis, QUOTA)


def _read(found: BatchPass, watch: _Watch, loss: BatchLoss | None, gradients: Mapping[str, Tensor]) -> None:
    """Bring the numbers to the host."""
    found.called = watch.called
    found.outputs = _statistics(watch.samples)
    if loss is not None:
        chance = loss.chance if isinstance(loss.chance, Tensor) else None
        values = fetched([loss.loss.detach(), *([chance] if chance is not None else [])])
        found.loss = values[0]
        found.chance = values[1] if chance is not None else loss.chance if isinstance(loss.chance, float) else None
        found.level, found.classes = loss.level, loss.classes
    if gradients:
        with untracked():
            wide = {name: each.to_dense() if each.is_sparse else each for name, each in gradients.items()}
            norms = fetched([_norm(gradient) for gradient in wide.values()])
        found.grad_norms = dict(zip(wide, norms, strict=True))
    elif not found.error:
        found.reason = _without_gradients(loss)


def _norm(gradient: Tensor) -> Tensor:
    # torch refuses a type that would narrow the values; halves overflow in their own.
    norm: Tensor = torch.linalg.vector_norm(gradient, 2.0, dtype=torch.float32 if gradient.itemsize < 4 else None)
    return norm


def _without_gradients(loss: BatchLoss | None) -> str:
    if loss is None:
        return "no loss is known for this output; give loss=, and a batch of inputs and targets"
    return "the loss depends on no trainable parameter"


def _statistics(samples: Mapping[str, tuple[OutputKind, ActivationSample]]) -> dict[str, dict[str, float]]:
    """The statistics of all outputs, by module and quantity."""
    by_device: dict[torch.device, list[str]] = {}
    for name, (_, sample) in samples.items():
        by_device.setdefault(sample.values.device, []).append(name)
    found: dict[str, dict[str, float]] = {}
    for names in by_device.values():
        with untracked():
            table = statistics_of([samples[each][1] for each in names], [samples[each][0] for each in names])
            zeros = torch.stack([(samples[each][1].values == 0).mean(dtype=torch.float32) for each in names])
        rows: list[Sequence[float]] = []
        readback = Readback()
        readback.fetch([], lambda _values, read, into=rows: into.extend(read), [*table, zeros])  # type: ignore[misc]
        readback.drain()
        *of_modules, shares = rows
        for name, row, share in zip(names, of_modules, shares, strict=True):
            found[name] = {**dict(zip(QUANTITIES, row, strict=True)), ZERO_SHARE: share}
    return {name: found[name] for name in samples}


def _moved(given: Any, device: torch.device) -> Any:
    """The batch, on the device of the model."""

    def to_device(each: Any) -> Any:
        return each.to(device) if isinstance(each, Tensor) and each.device != device else each

    return torch_api.tree_map(to_device, given)
