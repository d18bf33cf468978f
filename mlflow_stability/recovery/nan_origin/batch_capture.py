"""Keep the batches of the step in progress, so that the one that broke can be described, saved and run again.

Guarantees: references only, nothing is copied or waited for; what is held is bounded, and released when the next step
begins. Labels that only the script's own loss function sees are not captured.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from mlflow_stability.kinds.reported.broken_steps import TensorFacts, TokenFacts
from mlflow_stability.probes.forward.forward_passes import ForwardObserver
from mlflow_stability.probes.forward.forward_rerun import version_of
from mlflow_stability.probes.hooks import torch_api

DEEPEST = 16  # deeper nesting is skipped: it may contain itself

_EMPTY_IS_FALSE = (dict, tuple, list, type(None))


def tensors_in(*trees: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    for tree in trees:
        if isinstance(tree, Tensor):
            tensors.append(tree)
        elif type(tree) is tuple and len(tree) == 1 and isinstance(tree[0], Tensor):  # nearly always
            tensors.append(tree[0])
        elif type(tree) not in _EMPTY_IS_FALSE or tree:  # an array or a `TensorDict` has no truth value
            _collect(tree, tensors, DEEPEST)
    return tensors


def named_tensors(*trees: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with its path, such as ``[0]['input_ids']``."""
    for tree in trees:
        yield from _named("", tree, DEEPEST)


def _collect(value: Any, tensors: list[Tensor], deep: int) -> None:
    if isinstance(value, Tensor):
        tensors.append(value)
    elif value is None or not deep:
        return
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, tensors, deep - 1)
    elif isinstance(value, (dict, Mapping)):  # whether it is a mapping of another kind takes a microsecond to ask
        for item in value.values():
            _collect(item, tensors, deep - 1)
    elif _is_record(value):
        for field in fields(value):
            _collect(getattr(value, field.name, None), tensors, deep - 1)


def _named(name: str, value: Any, deep: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif deep and isinstance(value, tuple | list):
        for number, item in enumerate(value):
            yield from _named(f"{name}[{number}]", item, deep - 1)
    elif deep and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(f"{name}[{key!r}]", item, deep - 1)
    elif deep and _is_record(value):
        for field in fields(value):
            yield from _named(f"{name}.{field.name}", getattr(value, field.name, None), deep - 1)


def _is_record(value: Any) -> bool:
    return hasattr(value, "__dataclass_fields__") and not isinstance(value, type)


MOST_BYTES = 256 * 2**20  # larger inputs are not held
MOST_OUTPUT_BYTES = 64 * 2**20  # larger outputs are not held
MOST_EARLIER_BYTES = 32 * 2**20  # limit for earlier passes of a step, beside the last one
MOST_PASSES = 32  # limit for passes of a step


class CapturedBatch:
    # No dataclass: one is made in every step, and with these slots, a weak reference too, in a third of the time.
    __slots__ = (
        "__weakref__",
        "args",
        "autocast",
        "bytes",
        "device",
        "ended",
        "gradients",
        "has_output_hook",
        "kwargs",
        "nodes",
        "outputs",
        "random",
        "root",
        "step",
        "versions",
    )

    def __init__(
        self,
        root: weakref.ref[Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        autocast: tuple[bool, torch.dtype],
        device: torch.device,
        random: tuple[Tensor, Tensor | None],
        step: int,
        versions: tuple[int, ...],
        size: int,
    ) -> None:
        self.root, self.args, self.kwargs, self.autocast, self.device = root, args, kwargs, autocast, device
        self.random = random  # states of the random generators of host and device right before
        self.step = step  # number of the capture: parallel trainings have several in one recorded step
        self.outputs: tuple[Tensor | None, ...] = ()
        """Floating-point outputs in order; None where one was too large to be held."""
        self.ended = False  # whether the forward pass returned
        self.gradients: dict[int, list[Tensor]] = {}
        """Gradients of the outputs, by their index, one for each backward pass."""
        self.nodes: tuple[tuple[str, int], ...] = ()  # name and sequence number of the outputs' autograd nodes
        self.has_output_hook = False  # whether the script hooks an output: then gradients are those after its hook
        self.versions = versions
        self.bytes = size

    @property
    def all_outputs(self) -> bool:
        return self.ended and all(output is not None for output in self.outputs)

    def without_outputs(self) -> CapturedBatch:
        size = self.bytes - sum(output.nbytes for output in self.outputs if output is not None)
        same = self.root, self.args, self.kwargs, self.autocast, self.device, self.random, self.step, self.versions
        alone = CapturedBatch(*same, size)
        alone.ended = self.ended
        return alone

    @property
    def was_changed(self) -> bool:
        return self.versions != tuple(map(version_of, tensors_in(self.args, self.kwargs)))


@dataclass(frozen=True, slots=True)
class CapturedLoss:
    """The tensor that backward was called on."""

    value: Tensor
    node: Any  # its autograd node


class BatchCapture(ForwardObserver):
    part = "the broken batch"

    def __init__(
        self, most_bytes: int = MOST_BYTES, most_earlier_bytes: int = MOST_EARLIER_BYTES, host_only: bool = False
    ) -> None:
        self._most_bytes = most_bytes
        self._most_earlier_bytes = most_earlier_bytes
        self._host_only = host_only  # whether models on accelerators are skipped
        self._is_over = False
        self.steps_kept = 1  # how many steps back are kept: two where a device tells later whether a step was broken
        self._passes: deque[CapturedBatch] = deque()
        self._open: CapturedBatch | None = None
        self._awaited: list[_Output] = []  # outputs whose gradients have not come back, of at most `MOST_PASSES` passes
        self._handles: list[RemovableHandle] = []  # hooks of the running backward pass
        self.step = 0  # the step of the next pass; set at the first optimizer step before it
        self.loss: CapturedLoss | None = None
        """What backward was called on last. Its graph keeps weights alive, so it is dropped at the optimizer's step."""
        self._known: tuple[weakref.ref[Module], torch.device, bool] | None = None
        """The last model called, its device, and whether that is the host."""
        self._devices: weakref.WeakKeyDictionary[Module, torch.device] = weakref.WeakKeyDictionary()

    def passes(self, step: int) -> tuple[CapturedBatch, ...]:
        return tuple(batch for batch in self._passes if batch.step == step and batch.ended)

    def backward_began(self, tensors: Any) -> None:
        loss = tensors if isinstance(tensors, Tensor) else tensors[0] if len(tensors) == 1 else None
        self.loss = None if loss is None else CapturedLoss(loss.detach(), loss.grad_fn)

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._open = self.loss = None
        if self._is_over:
            return
        if self._awaited:
            self.gradients_end()
        last = self._known
        if last is None or last[0]() is not root:
            device = self._devices.get(root)
            if device is None:
                device = next((parameter.device for parameter in Module.parameters(root)), torch.device("cpu"))
                self._devices[root] = device
            last = self._known = weakref.ref(root), device, device.type == "cpu"
        if self._host_only and not last[2]:
            return
        first = args[0] if len(args) == 1 and not kwargs else None
        if type(first) is Tensor and first.layout is torch.strided and not first.is_nested:  # nearly always
            if torch_api.is_functorch_wrapped_tensor(first):
                return  # within `torch.func`: it cannot be used outside
            size = first.nbytes
            versions: tuple[int, ...] = (0 if first.is_inference() else first._version,)
        else:
            inputs = tensors_in(args, kwargs) if kwargs else tensors_in(args)
            if any(map(torch_api.is_functorch_wrapped_tensor, inputs)):
                return
            size, versions = sum(map(_bytes_of, inputs)), tuple(map(version_of, inputs))
        passes = self._passes
        if len(passes) == 1 and passes[0].step <= self.step - self.steps_kept:
            passes.clear()  # nearly always
        elif passes:
            self._make_room(size)
        if size > self._most_bytes:
            return
        device = last[1]
        kind = device.type
        autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        random = torch.default_generator.get_state(), None if last[2] else _device_random(device)
        batch = self._open = CapturedBatch(last[0], args, kwargs, autocast, device, random, self.step, versions, size)
        passes.append(batch)

    def forward_gave(self, outputs: Any) -> None:
        alone = isinstance(outputs, Tensor)  # nearly always
        if self._open is not None and any(
            map(torch_api.is_functorch_wrapped_tensor, (outputs,) if alone else tensors_in(outputs))
        ):
            self.forward_failed()
        batch, self._open = self._open, None
        if batch is None:
            return
        if alone and outputs.is_floating_point():
            size = outputs.numel() * outputs.element_size()
            batch.ended, batch.outputs = True, (None,)
            batch.has_output_hook = bool(outputs._backward_hooks)
            node = outputs.grad_fn
            if size <= MOST_OUTPUT_BYTES:
                batch.outputs = (outputs.detach(),)
                batch.bytes += size
                if node is not None:
                    self._awaited.append(_Output(batch, 0, outputs, node))
            if node is not None:
                batch.nodes = ((node.name(), node._sequence_nr()),)
            return
        tensors = [tensor for tensor in tensors_in(outputs) if tensor.is_floating_point() or tensor.is_complex()]
        sizes = [tensor.numel() * tensor.itemsize for tensor in tensors]
        held: list[Tensor | None] = [None] * len(tensors)
        used = 0
        for number in sorted(range(len(tensors)), key=sizes.__getitem__):
            used += sizes[number]
            if used > MOST_OUTPUT_BYTES:
                break
            output = tensors[number]
            held[number] = output.detach()
            batch.bytes += sizes[number]
            if output.grad_fn is not None:
                self._awaited.append(_Output(batch, number, output, output.grad_fn))
        batch.nodes = tuple(
            [(graph.name(), graph._sequence_nr()) for tensor in tensors if (graph := tensor.grad_fn) is not None]
        )
        batch.has_output_hook = any(bool(tensor._backward_hooks) for tensor in tensors)
        batch.outputs, batch.ended = tuple(held), True

    def forward_failed(self) -> None:
        if self._open is not None:
            self._passes.remove(self._open)
            self._open = None

    def gradients_begin(self) -> None:
        """Install hooks on the gradients of the outputs for one backward pass."""
        for output in self._awaited:
            node = output.node_of_graph() if output.node is None else output.node
            if node is not None:
                self._handles.append(node.register_prehook(output.received))

    def gradients_end(self) -> None:
        """Remove the hooks, and release the graphs; outputs that the script keeps may be used again."""
        while self._handles:
            self._handles.pop().remove()
        kept = []
        for output in self._awaited:
            output.node = None
            if output.tensor() is not None and output.batch() is not None:
                kept.append(output)
        self._awaited = kept[-MOST_PASSES:]

    def stop(self) -> None:
        self._is_over = True
        self._passes.clear()
        self._awaited.clear()
        self._open = self.loss = None

    def _make_room(self, size: int) -> None:
        """Release earlier steps, and the earliest passes of this one where they have grown too large."""
        passes = self._passes
        while passes and (passes[0].step <= self.step - self.steps_kept or not passes[-1].ended):
            passes.popleft() if passes[-1].ended else passes.pop()
        if passes and (size > self._most_earlier_bytes or len(passes) >= MOST_PASSES):
            passes.popleft()
        earlier = sum([batch.bytes for batch in passes])
        while passes and earlier > self._most_earlier_bytes:
            earlier -= passes.popleft().bytes


class _Output:
    """An output whose gradient has not come back.

    Its graph is held until the next forward or backward pass and no longer: the script may have released it.
    """

    __slots__ = ("_at", "_number", "_sequence", "batch", "node", "tensor")

    def __init__(self, batch: CapturedBatch, number: int, tensor: Tensor, node: Any) -> None:
        self.batch, self._number, self._at = weakref.ref(batch), number, tensor.output_nr
        self.tensor, self._sequence = weakref.ref(tensor), node._sequence_nr()
        self.node: Any = node

    def node_of_graph(self) -> Any:
        """Return its autograd node, where that is still the one of the forward pass."""
        tensor = self.tensor()
        node = None if tensor is None or self.batch() is None else tensor.grad_fn
        return node if node is not None and node._sequence_nr() == self._sequence else None

    def received(self, gradients: tuple[Tensor | None, ...]) -> None:
        batch, gradient = self.batch(), gradients[self._at]
        if batch is not None and gradient is not None:
            batch.gradients.setdefault(self._number, []).append(gradient.detach())


def _bytes_of(tensor: Tensor) -> int:
    return tensor._values().nbytes if tensor.is_sparse else tensor.numel() * tensor.element_size()


def _device_random(device: torch.device) -> Tensor | None:
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None
    state: Tensor = module.get_rng_state(device)
    return state


MOST_VALUES = 2**22  # maximum number of values among which tokens are counted


def facts_of(batch: CapturedBatch) -> tuple[TensorFacts, ...]:
    """Describe every tensor of a batch; waits for the device."""
    with torch.no_grad():
        return tuple(_facts(name, tensor.detach()) for name, tensor in inputs_of(batch))


def facts_of_tensor(name: str, tensor: Tensor) -> TensorFacts:
    """Describe one tensor, without counting tokens."""
    with torch.no_grad():
        return _facts(name, tensor.detach(), tokens=False)


def save_batch(passes: Sequence[CapturedBatch], path: Path) -> Path:
    """Write the tensors of a batch with their names; those of several passes with their number."""
    prefixes = [f"micro_batch_{number}." for number in range(1, len(passes) + 1)] if len(passes) > 1 else [""]
    tensors = {
        prefix + name: tensor.detach().cpu().clone()
        for prefix, batch in zip(prefixes, passes, strict=True)
        for name, tensor in inputs_of(batch)
    }
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.save(tensors, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def inputs_of(batch: CapturedBatch) -> list[tuple[str, Tensor]]:
    """Return the tensors of a batch with their paths, such as ``args[0]``."""
    positional = [(f"args{name}", tensor) for name, tensor in named_tensors(batch.args)]
    return positional + [(f"kwargs{name}", tensor) for name, tensor in named_tensors(batch.kwargs)]


def _facts(name: str, tensor: Tensor, tokens: bool = True) -> TensorFacts:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.is_sparse else tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point():
        counted = _tokens(tensor) if tokens and tensor.dtype != torch.bool and tensor.numel() else None
        least, greatest, mean = _range(tensor.to(torch.float64))
        return TensorFacts(name, shape, dtype, least, greatest, mean, tokens=counted)
    if tensor.element_size() == 1:
        tensor = tensor.float()  # numbers of eight bits can be kept, and not much else
    nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    values = tensor if not nan + inf else tensor[tensor.isfinite()]
    return TensorFacts(name, shape, dtype, *_range(values), nan, inf)


def _range(values: Tensor) -> tuple[float | None, float | None, float | None]:
    if not values.numel():
        return None, None, None
    least, greatest = torch.aminmax(values)
    wide = torch.float64 if values.device.type == "cpu" else torch.float32
    return float(least), float(greatest), float(values.mean(dtype=wide))


def _tokens(tensor: Tensor) -> TokenFacts:
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() > 1 else tensor.reshape(1, -1)
    rows = rows[: max(1, MOST_VALUES // max(1, rows.shape[1]))].cpu()
    tokens, counts = torch.unique(rows, return_counts=True)
    most = int(counts.argmax())
    runs = [int(torch.unique_consecutive(row, return_counts=True)[1].max()) for row in rows]
    return TokenFacts(
        different=len(tokens),
        most_frequent=int(tokens[most]),
        its_share=float(counts[most]) / rows.numel(),
        longest_run=max([0, *runs]),
        repeated_rows=len(rows) - len(torch.unique(rows, dim=0)) if tensor.dim() > 1 else 0,
        negative=int((rows < 0).sum()),
    )
