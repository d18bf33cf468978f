"""Restores buffers after a broken forward pass, and an optimizer after a step that must not count.

In: modules that train, and whether each capture was broken; an optimizer before its step. Out: buffers as they were
one step before; the optimizer as if the step had not been taken. Guarantees: few kernels for any number of buffers;
tensors keep their addresses and autograd versions; memory stays within the budget; state made during the step is
removed. Buffers that are not in a module's state_dict (masks, position tables) are left alone.

Two sizes of optimizer copies: counters alone for a step without gradients, and everything for LBFGS, which changes
weights within one step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.objects import state_of

BUDGET = 64 * 2**20
"""How many bytes of the device the copy may take."""


@dataclass(slots=True)
class _Place:
    module: weakref.ref[Module]
    name: str
    buffer: Tensor
    is_parameter: bool = False
    """As Keras keeps the moving averages of its layers."""


@dataclass(slots=True)
class _Bucket:
    """Buffers of one device and type, and one long copy of them all."""

    buffers: list[Tensor]
    copy: Tensor
    parts: list[Tensor]
    """Views of the copy, one for each buffer."""


class BufferUndo:
    """A rolling copy of the buffers of a training."""

    def __init__(self, modules: Iterable[Module], budget: int = BUDGET) -> None:
        self._modules = [weakref.ref(each) for each in modules]
        self._budget = budget
        self._places: list[_Place] = []
        self._buckets: list[_Bucket] = []
        self._filled = False
        self.left_out: tuple[str, ...] = ()
        """Names of buffers that did not fit into the budget."""
        self._gather()

    @property
    def bytes(self) -> int:
        """What the copy takes."""
        return sum(each.copy.nbytes for each in self._buckets)

    def keep(self) -> None:
        """The capture was sound: remember the buffers as they are."""
        if self._filled and not self._places:
            return
        self._refresh()
        with torch.no_grad():
            for bucket in self._buckets:
                bucket.copy.copy_(_row(bucket))
        self._filled = True

    def undo(self) -> bool:
        """The capture was broken: put the buffers back; False where there is no copy of all of them."""
        if not self._filled or not self._is_current():
            return False
        with torch.no_grad():
            for bucket in self._buckets:
                torch_api.foreach_copy_([each.data for each in bucket.buffers], bucket.parts)
        return True

    def settle(self, flag: Tensor) -> None:
        """Keep or undo, whichever a flag on the device says; nobody waits for it."""
        if not self._filled or not self._is_current():
            return  # a copy of what may be broken is none; the next sound capture that is known on the host makes one
        with torch.no_grad():
            for bucket in self._buckets:
                broken = flag.to(bucket.copy.device, non_blocking=True) > 0
                bucket.copy.copy_(torch.where(broken, bucket.copy, _row(bucket)))
                torch_api.foreach_copy_([each.data for each in bucket.buffers], bucket.parts)

    @property
    def has_copy(self) -> bool:
        """Whether there is something to go back to."""
        return self._filled and self._is_current()

    def _refresh(self) -> None:
        if not self._is_current():
            self._gather()

    def _is_current(self) -> bool:
        """Whether each buffer is still the tensor that its module holds."""
        for place in self._places:
            module = place.module()
            if module is None:
                return False
            held = module._parameters if place.is_parameter else module._buffers
            if held.get(place.name) is not place.buffer:
                return False
        return True

    def _gather(self) -> None:
        self._places, self._buckets, self._filled = [], [], False
        found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        left_out: list[str] = []
        seen: set[int] = set()
        room = self._budget
        for root in [living for each in self._modules if (living := each()) is not None]:
            for path, module in Module.named_modules(root):
                for place in _places_of(module):
                    name, buffer = place.name, place.buffer
                    if id(buffer) in seen:
                        continue
                    seen.add(id(buffer))
                    if buffer.layout is not torch.strided or hasattr(buffer, "to_local") or buffer.nbytes > room:
                        left_out.append(f"{path}.{name}" if path else name)
                        continue
                    room -= buffer.nbytes
                    self._places.append(place)
                    found.setdefault((buffer.device, buffer.dtype), []).append(buffer)
        self.left_out = tuple(left_out)
        for (device, dtype), buffers in found.items():
            copy = torch.empty(sum(each.numel() for each in buffers), dtype=dtype, device=device)
            lengths = [each.numel() for each in buffers]
            parts = [part.view(each.shape) for part, each in zip(torch.split(copy, lengths), buffers, strict=True)]
            self._buckets.append(_Bucket(buffers, copy, parts))


def _places_of(module: Module) -> Iterator[_Place]:
    """The buffers of a module; of a layer of Keras that is trained, what it keeps beside its weights."""
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield _Place(weakref.ref(module), name, buffer)
    variables = module._modules.get("_torch_params")
    if variables is not None and getattr(module, "trainable", False):
        for name, parameter in variables._parameters.items():
            if parameter is not None and not parameter.requires_grad and parameter.is_floating_point():
                yield _Place(weakref.ref(variables), name, parameter, is_parameter=True)


def _row(bucket: _Bucket) -> Tensor:
    return torch.cat([each.detach().reshape(-1) for each in bucket.buffers])


PutBack = Callable[[], None]


def copy_bookkeeping(optimizer: Optimizer) -> PutBack:
    """Remember which state there is, and every number that is not a tensor: counters of groups and parameters."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    kept = state_of(optimizer)
    states = {key: (entry, dict(entry) if isinstance(entry, dict) else None) for key, entry in kept.items()}

    def put_back() -> None:
        for group, before in zip(optimizer.param_groups, groups, strict=False):
            _be_again(group, before, keep="params")
        state = state_of(optimizer)
        for key in [each for each in state if each not in states]:
            del state[key]
        for key, (entry, content) in states.items():
            if content is not None:
                _be_again(entry, content)
            if state.get(key) is not entry:
                state[key] = entry

    return put_back


def copy_everything(optimizer: Optimizer) -> PutBack:
    """Remember weights and state, tensors included: as much memory again as the optimizer's state."""
    put_bookkeeping_back = copy_bookkeeping(optimizer)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    with torch.no_grad():
        undo = [_undo_of(each) for each in (*parameters, *state_of(optimizer).values())]

    def put_back() -> None:
        put_bookkeeping_back()
        with torch.no_grad():
            for each in undo:
                each()

    return put_back


def _be_again(now: dict[str, Any], before: dict[str, Any], keep: str = "") -> None:
    for key in [key for key in now if key not in before and key != keep]:
        del now[key]
    now.update(before)


def _undo_of(value: Any) -> PutBack:
    """What makes a tensor, or everything in a list or dictionary, what it is now."""
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        return lambda: _fill(value, copy)
    if not isinstance(value, dict | list):
        return lambda: None
    entries = value.copy()
    inner = [_undo_of(each) for each in (value.values() if isinstance(value, dict) else value)]

    def undo() -> None:
        value.clear()
        if isinstance(value, dict):
            value.update(entries)
        else:
            value.extend(entries)
        for each in inner:
            each()

    return undo


def _fill(tensor: Tensor, copy: Tensor) -> None:
    tensor.data.copy_(copy)
