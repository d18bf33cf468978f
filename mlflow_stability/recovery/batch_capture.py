"""Keeps hold of the last batch, so that the one that broke can be looked at and run again.

In: the forward pass of a root module while it trains. Out: its inputs, how it was called, and what came out, of the
last forward pass. Promised: references only, nothing is copied and nothing waited for; what is held is bounded, and
let go when the next forward pass begins. What the script keeps to itself, such as labels that only its own loss
function sees, is not seen here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import keystr, tree_flatten_with_path
from torch.utils.hooks import RemovableHandle

MOST_BYTES = 256 * 2**20
"""Inputs larger than this are not held."""
MOST_OUTPUT_BYTES = 64 * 2**20
"""Nor are outputs larger than this."""


@dataclass(slots=True)
class CapturedBatch:
    """The last forward pass of a root module."""

    root: weakref.ref[Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: tuple[bool, torch.dtype]
    device: torch.device
    random: tuple[Tensor, Tensor | None]
    """The state of the random numbers of the host and of the device, right before."""
    outputs: tuple[Tensor, ...] = ()
    """What came out, as far as it was small enough to be held."""
    all_outputs: bool = False
    """Whether that is all."""
    versions: tuple[int, ...] = ()

    @property
    def was_changed(self) -> bool:
        """Whether an input was changed in place since."""
        return self.versions != tuple(each._version for _, each in named_tensors(self.args, self.kwargs))


class BatchCapture:
    """Watches one root module."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_output_bytes: int = MOST_OUTPUT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._most_output_bytes = most_output_bytes
        self._batch: CapturedBatch | None = None
        self._handles: list[RemovableHandle] = []
        self.too_large = 0
        """How many bytes the last batch had, if it was too large to be held; else 0."""

    @property
    def batch(self) -> CapturedBatch | None:
        """The last forward pass; None where there was none, or its batch was too large."""
        return self._batch

    def install(self, root: Module) -> None:
        """Begin to watch; the root is the module that the script calls, wrappers included."""
        self._handles.append(root.register_forward_pre_hook(self._before, with_kwargs=True))
        self._handles.append(root.register_forward_hook(self._after))

    def remove(self) -> None:
        """Take the hooks off and let go of the batch."""
        while self._handles:
            self._handles.pop().remove()
        self._batch = None

    def _before(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_training(root):
            return
        self._batch = None
        tensors = [each for _, each in named_tensors(args, kwargs)]
        size = sum(map(_size, tensors))
        self.too_large = size if size > self._most_bytes else 0
        if self.too_large:
            return
        device = next((each.device for each in root.parameters()), torch.device("cpu"))
        kind = device.type
        autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        versions = tuple(each._version for each in tensors)
        random = torch.get_rng_state(), _device_random(device)
        self._batch = CapturedBatch(weakref.ref(root), args, kwargs, autocast, device, random, versions=versions)

    def _after(self, root: Module, _args: tuple[Any, ...], outputs: Any) -> None:
        batch = self._batch
        if batch is None or not _is_training(root) or batch.root() is not root:
            return
        found = [each.detach() for _, each in named_tensors(outputs) if each.is_floating_point()]
        held, room = [], self._most_output_bytes
        for each in sorted(found, key=_size):
            room -= _size(each)
            if room >= 0:
                held.append(each)
        batch.outputs, batch.all_outputs = tuple(held), len(held) == len(found)


def named_tensors(*trees: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in arguments of any shape, with the way to it: ``[0]['input_ids']``."""
    for tree in trees:
        for path, leaf in tree_flatten_with_path(tree)[0]:
            if isinstance(leaf, Tensor):
                yield keystr(path), leaf


def _size(tensor: Tensor) -> int:
    return tensor._values().nbytes if tensor.is_sparse else tensor.numel() * tensor.element_size()


def _is_training(root: Module) -> bool:
    return root.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _device_random(device: torch.device) -> Tensor | None:
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None
    state: Tensor = module.get_rng_state(device)
    return state
