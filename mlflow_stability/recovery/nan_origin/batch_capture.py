"""Keeps hold of the batches of the step in progress, so that the one that broke can be looked at and run again.

In: forward passes of models that train, from a `ForwardWatch`. Out: for each pass of the step what the model was called
with, what came out, and the gradient that came back to it. Guarantees: references only, nothing is copied and nothing
waited for; what is held is bounded, and let go when the next step begins. What the script keeps to itself, such as
labels that only its own loss function sees, is not seen here.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from mlflow_stability.probes.forward import ForwardObserver
from mlflow_stability.probes.rerun import version_of
from mlflow_stability.recovery.nan_origin.nested_tensors import tensors_in

MOST_BYTES = 256 * 2**20
"""Inputs larger than this are not held."""
MOST_OUTPUT_BYTES = 64 * 2**20
"""Nor are outputs larger than this."""
MOST_EARLIER_BYTES = 32 * 2**20
"""So much of the earlier passes of a step is held, beside the last one."""
MOST_PASSES = 32
"""And so many passes."""


class CapturedBatch:
    """One forward pass of a model that trains."""

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
        self.random = random
        """The state of the random numbers of the host and of the device, right before."""
        self.step = step
        """Which step it belongs to, counted by captures: trainings side by side have several in what is recorded as
        one."""
        self.outputs: tuple[Tensor | None, ...] = ()
        """The numbers that came out, in order; None where one was too large to be held."""
        self.ended = False
        """Whether anything came out at all."""
        self.gradients: dict[int, list[Tensor]] = {}
        """What came back to the outputs, by their place among them; one for each backward pass through them."""
        self.nodes: tuple[tuple[str, int], ...] = ()
        """Where the outputs stand in the graph of gradients: name and number of each node."""
        self.has_output_hook = False
        """Whether the script hooks an output: the gradients here are then what its hook has made of them."""
        self.versions = versions
        self.bytes = size

    @property
    def all_outputs(self) -> bool:
        """Whether all that came out is held."""
        return self.ended and all(each is not None for each in self.outputs)

    @property
    def input_bytes(self) -> int:
        """Of its inputs alone."""
        return self.bytes - sum(each.nbytes for each in self.outputs if each is not None)

    def without_outputs(self) -> CapturedBatch:
        """The same pass with its inputs alone."""
        same = self.root, self.args, self.kwargs, self.autocast, self.device, self.random, self.step, self.versions
        alone = CapturedBatch(*same, self.input_bytes)
        alone.ended = self.ended
        return alone

    @property
    def was_changed(self) -> bool:
        """Whether an input was changed in place since."""
        return self.versions != tuple(map(version_of, tensors_in(self.args, self.kwargs)))


@dataclass(frozen=True, slots=True)
class CapturedLoss:
    """What backward was called on."""

    value: Tensor
    node: Any
    """Where it stands in the graph of gradients."""


class BatchCapture(ForwardObserver):
    """A listener to forward passes that remembers those of the last step."""

    part = "the broken batch"

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        most_output_bytes: int = MOST_OUTPUT_BYTES,
        most_earlier_bytes: int = MOST_EARLIER_BYTES,
        host_only: bool = False,
    ) -> None:
        self._most_bytes = most_bytes
        self._most_output_bytes = most_output_bytes
        self._most_earlier_bytes = most_earlier_bytes
        self._host_only = host_only
        """Whether models on accelerators are left alone."""
        self._is_over = False
        self.steps_kept = 1
        """How many steps back is remembered: two where a device tells later whether a step was broken."""
        self._passes: deque[CapturedBatch] = deque()
        self._open: CapturedBatch | None = None
        self._awaited: list[_Output] = []
        """Outputs whose gradients have not come back, of at most `MOST_PASSES` passes."""
        self._handles: list[RemovableHandle] = []
        """Hooks of the backward pass that is going on."""
        self.step = 0
        """Which step the next pass belongs to; set at the first optimizer step before it."""
        self.loss: CapturedLoss | None = None
        """What backward was called on last, until its optimizer steps: its graph holds on to the weights."""
        self._known: tuple[weakref.ref[Module], torch.device, bool] | None = None
        """The model that was called last, where it is, and whether that is the host."""
        self._devices: weakref.WeakKeyDictionary[Module, torch.device] = weakref.WeakKeyDictionary()
        self.too_large = 0
        """How many bytes the last batch had, if it was too large to be held; else 0."""

    def passes(self, step: int) -> tuple[CapturedBatch, ...]:
        """What is held of a step, in the order of its passes."""
        return tuple(each for each in self._passes if each.step == step and each.ended)

    def backward_began(self, tensors: Any) -> None:
        """Runs before a backward pass."""
        loss = tensors if isinstance(tensors, Tensor) else tensors[0] if len(tensors) == 1 else None
        self.loss = None if loss is None else CapturedLoss(loss.detach(), loss.grad_fn)

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs right before a forward pass of training."""
        self._open = self.loss = None
        if self._is_over:
            return
        if self._awaited:
            self.gradients_end()
        known = self._known
        if known is None or known[0]() is not root:
            device = self._device_of(root)
            known = self._known = weakref.ref(root), device, device.type == "cpu"
        if self._host_only and not known[2]:
            return
        first = args[0] if len(args) == 1 and not kwargs else None
        if type(first) is Tensor and first.layout is torch.strided and not first.is_nested:  # nearly always
            size = first.nbytes
            versions: tuple[int, ...] = (0 if first.is_inference() else first._version,)
        else:
            inputs = tensors_in(args, kwargs) if kwargs else tensors_in(args)
            size, versions = sum(map(_bytes_of, inputs)), tuple(map(version_of, inputs))
        passes = self._passes
        if len(passes) == 1 and passes[0].step <= self.step - self.steps_kept:
            passes.clear()  # nearly always
        elif passes:
            self._make_room(size)
        self.too_large = size if size > self._most_bytes else 0
        if self.too_large:
            return
        device = known[1]
        kind = device.type
        autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        random = torch.default_generator.get_state(), None if known[2] else _device_random(device)
        batch = self._open = CapturedBatch(known[0], args, kwargs, autocast, device, random, self.step, versions, size)
        passes.append(batch)

    def forward_gave(self, outputs: Any) -> None:
        """Runs right after it, with what came out."""
        batch, self._open = self._open, None
        if batch is None:
            return
        if isinstance(outputs, Tensor) and outputs.is_floating_point():  # nearly always
            size = outputs.numel() * outputs.element_size()
            batch.ended, batch.outputs = True, (None,)
            batch.has_output_hook = bool(outputs._backward_hooks)
            node = outputs.grad_fn
            if size <= self._most_output_bytes:
                batch.outputs = (outputs.detach(),)
                batch.bytes += size
                if node is not None:
                    self._awaited.append(_Output(batch, 0, outputs, node))
            if node is not None:
                batch.nodes = ((node.name(), node._sequence_nr()),)
            return
        found = [each for each in tensors_in(outputs) if each.is_floating_point() or each.is_complex()]
        sizes = [each.numel() * each.itemsize for each in found]
        held: list[Tensor | None] = [None] * len(found)
        used = 0
        for number in sorted(range(len(found)), key=sizes.__getitem__):
            used += sizes[number]
            if used > self._most_output_bytes:
                break
            output = found[number]
            held[number] = output.detach()
            batch.bytes += sizes[number]
            if output.grad_fn is not None:
                self._awaited.append(_Output(batch, number, output, output.grad_fn))
        batch.nodes = tuple([(each.name(), each._sequence_nr()) for one in found if (each := one.grad_fn) is not None])
        batch.has_output_hook = any(bool(each._backward_hooks) for each in found)
        batch.outputs, batch.ended = tuple(held), True

    def forward_failed(self) -> None:
        """Runs instead of that where the forward pass raised an exception."""
        if self._open is not None:
            self._passes.remove(self._open)
            self._open = None

    def gradients_begin(self) -> None:
        """Runs before a backward pass: listen to the gradients of the outputs until it is over."""
        for output in self._awaited:
            node = output.node_of_graph() if output.node is None else output.node
            if node is not None:
                self._handles.append(node.register_prehook(output.received))

    def gradients_end(self) -> None:
        """Runs after it, failed or not: hold no hook and no graph; outputs that the script keeps may be used again."""
        while self._handles:
            self._handles.pop().remove()
        kept = []
        for output in self._awaited:
            output.node = None
            if output.tensor() is not None and output.batch() is not None:
                kept.append(output)
        self._awaited = kept[-MOST_PASSES:]

    def stop(self) -> None:
        """Hold nothing any more."""
        self._is_over = True
        self._passes.clear()
        self._awaited.clear()
        self._open = self.loss = None

    def _make_room(self, size: int) -> None:
        """Let go of earlier steps, and of the earliest passes of this one where they have grown too large."""
        passes = self._passes
        while passes and (passes[0].step <= self.step - self.steps_kept or not passes[-1].ended):
            passes.popleft() if passes[-1].ended else passes.pop()
        if passes and (size > self._most_earlier_bytes or len(passes) >= MOST_PASSES):
            passes.popleft()
        earlier = sum([each.bytes for each in passes])
        while passes and earlier > self._most_earlier_bytes:
            earlier -= passes.popleft().bytes

    def _device_of(self, root: Module) -> torch.device:
        device = self._devices.get(root)
        if device is None:
            device = next((each.device for each in Module.parameters(root)), torch.device("cpu"))
            self._devices[root] = device
        return device


class _Output:
    """An output, from the end of its forward pass until its gradient has come back.

    The graph behind it is held until the next forward or backward pass and no longer: the script may have let it go.
    """

    __slots__ = ("_at", "_number", "_sequence", "batch", "node", "tensor")

    def __init__(self, batch: CapturedBatch, number: int, tensor: Tensor, node: Any) -> None:
        self.batch, self._number, self._at = weakref.ref(batch), number, tensor.output_nr
        self.tensor, self._sequence = weakref.ref(tensor), node._sequence_nr()
        self.node: Any = node

    def node_of_graph(self) -> Any:
        """Its node in the graph of gradients, where that is still the one of the forward pass."""
        tensor = self.tensor()
        node = None if tensor is None or self.batch() is None else tensor.grad_fn
        return node if node is not None and node._sequence_nr() == self._sequence else None

    def received(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Hook of the node: take note of the gradient."""
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
