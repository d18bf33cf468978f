"""Restore buffers after a broken forward pass, and an optimizer after a step that must not count.

Guarantees: few kernels for any number of buffers; tensors keep their addresses and autograd versions; memory stays
within the budget; state made during the step is removed. A buffer that forward has replaced by another tensor is the
original one again. Non-persistent buffers (masks, position tables) are left alone. Buffers of a model whose forward
passes are not observed go back to one step before, including what the script wrote into them since.

Three sizes of optimizer copies: counters alone for a step without gradients, where that is known to do nothing;
weights, for a step that moves them before it asks for gradients; everything for all others.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import local_part
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.model_discovery import state_of

BUDGET = 64 * 2**20  # limit of device memory for the copy


@dataclass(slots=True)
class _Place:
    module: weakref.ref[Module]
    name: str
    buffer: Tensor
    is_parameter: bool = False  # Keras keeps the moving averages of its layers so

    def now(self) -> Any:
        """Return what the module holds there; None where the module is gone."""
        module = self.module()
        if module is None:
            return None
        held = module._parameters if self.is_parameter else module._buffers
        return held[self.name] if self.name in held else None  # noqa: SIM401 -- a scripted module has no `get`


@dataclass(slots=True)
class _Bucket:
    """Buffers of one device and type, and one flat copy of them all."""

    places: list[_Place]
    buffers: list[Tensor]
    copy: Tensor
    parts: list[Tensor]  # views of the copy, one for each buffer


class BufferUndo:
    def __init__(self, modules: Iterable[Module], budget: int = BUDGET) -> None:
        self._modules = [weakref.ref(module) for module in modules]
        self._budget = budget
        self._places: list[_Place] = []
        self._buckets: list[_Bucket] = []
        self._filled = self.has_buffers = False
        self._versions = 0  # sum of their autograd versions when the copy was made: versions only grow
        self._uncopied: list[_Place] = []  # beyond the budget, or of a type that is not copied
        self._gather()

    def keep(self) -> None:
        if self._filled and not self._places:
            return
        self._refresh()
        self._copy()

    def undo(self) -> bool:
        """Restore the buffers after a broken capture; False without a copy of all of them."""
        if not self._filled:
            return not (self._places or self._uncopied)
        with torch.no_grad():
            for bucket in self._buckets:
                torch_api.foreach_copy_([buffer.data for buffer in bucket.buffers], bucket.parts)
        replaced = [place for place in self._places if not _put_back(place)]
        self._versions = self._sum_of_versions()
        return not (replaced or self._uncopied)

    def has_broken(self) -> bool:
        """Whether a buffer holds NaN or positive infinity; masks hold negative infinity."""
        for place in (*self._places, *self._uncopied):
            buffer = place.now()
            if isinstance(buffer, Tensor) and buffer.is_floating_point() and buffer.layout is torch.strided:
                local = local_part(buffer).detach()
                if not bool(((local.float() if local.itemsize == 1 else local) < math.inf).all()):
                    return True
        return False

    def settle(self, flag: Tensor) -> None:
        """Keep or undo as a flag on the device says, without waiting."""
        if not self._filled or not self._is_current():
            return  # the buffers may be broken: the next capture known to be normal copies them
        with torch.no_grad():
            for bucket in self._buckets:
                broken = flag.to(bucket.copy.device, non_blocking=True) > 0
                bucket.copy.copy_(torch.where(broken, bucket.copy, _row(bucket)))
                torch_api.foreach_copy_([buffer.data for buffer in bucket.buffers], bucket.parts)
        self._versions = self._sum_of_versions()

    def forward_began(self) -> None:
        """Copy the buffers before the first forward pass of a capture: until then the script changes them itself."""
        if self._filled and (self._sum_of_versions() != self._versions or not self._is_current()):
            self._refresh()
            self._copy()

    @property
    def has_copy(self) -> bool:
        return self._filled and self._is_current()

    def _copy(self) -> None:
        with torch.no_grad():
            for bucket in self._buckets:
                if bucket.copy.device.type in _COPIES_MANY:
                    torch_api.foreach_copy_(bucket.parts, bucket.buffers)
                else:
                    bucket.copy.copy_(_row(bucket))
        self._filled, self._versions = True, self._sum_of_versions()

    def _sum_of_versions(self) -> int:
        return sum([sum(map(_VERSION, bucket.buffers)) for bucket in self._buckets])

    def _refresh(self) -> None:
        """Follow buffers that were replaced; start over where some came, went or changed their size."""
        if self._is_current():
            return
        for bucket in self._buckets:
            for number, place in enumerate(bucket.places):
                now = place.now()
                if now is place.buffer:
                    continue
                if not _is_alike(now, place.buffer):
                    self._gather()
                    return
                place.buffer = bucket.buffers[number] = now

    def _is_current(self) -> bool:
        """Whether each buffer is still the tensor that its module holds."""
        return all(place.now() is place.buffer for place in self._places)

    def _gather(self) -> None:
        self._places, self._uncopied, self._buckets, self._filled = [], [], [], False
        by_type: dict[tuple[torch.device, torch.dtype], list[_Place]] = {}
        seen: set[int] = set()
        room = self._budget
        for root in [living for reference in self._modules if (living := reference()) is not None]:
            for module in Module.modules(root):
                for place in _places_of(module):
                    buffer = place.buffer
                    if id(buffer) in seen:
                        continue
                    seen.add(id(buffer))
                    if not _can_be_copied(buffer) or buffer.nbytes > room:
                        self._uncopied.append(place)
                        continue
                    room -= buffer.nbytes
                    self._places.append(place)
                    by_type.setdefault((buffer.device, buffer.dtype), []).append(place)
        self.has_buffers = bool(self._places)
        for (device, dtype), places in by_type.items():
            buffers = [place.buffer for place in places]
            copy = torch.empty(sum(buffer.numel() for buffer in buffers), dtype=dtype, device=device)
            lengths = [buffer.numel() for buffer in buffers]
            parts = [part.view(buffer.shape) for part, buffer in zip(torch.split(copy, lengths), buffers, strict=True)]
            self._buckets.append(_Bucket(places, buffers, copy, parts))


_COPIES_MANY = ("cpu", "cuda")  # devices on which many small copies are faster than one flat copy
_VERSION: Callable[[Tensor], int] = attrgetter("_version")


def _can_be_copied(buffer: Tensor) -> bool:
    """Exclude sharded tensors and those of inference mode, which no training can write into."""
    return buffer.layout is torch.strided and not hasattr(buffer, "to_local") and not buffer.is_inference()


def _is_alike(now: Any, before: Tensor) -> bool:
    if not isinstance(now, Tensor) or not _can_be_copied(now):
        return False
    return now.shape == before.shape and now.dtype is before.dtype and now.device == before.device


def _put_back(place: _Place) -> bool:
    """Let the module hold the copied tensor again; False where it holds something incompatible by now."""
    now = place.now()
    if now is place.buffer:
        return True
    module = place.module()
    if module is None or place.is_parameter or not _is_alike(now, place.buffer):
        return False
    module._buffers[place.name] = place.buffer
    return True


def _places_of(module: Module) -> Iterator[_Place]:
    """Yield the buffers of a module; for a trained Keras layer also its non-trainable variables."""
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield _Place(weakref.ref(module), name, buffer)
    variables = dict(module._modules.items()).get("_torch_params")
    if variables is not None and getattr(module, "trainable", False):
        for name, parameter in variables._parameters.items():
            if parameter is not None and not parameter.requires_grad and parameter.is_floating_point():
                yield _Place(weakref.ref(variables), name, parameter, is_parameter=True)


def _row(bucket: _Bucket) -> Tensor:
    row: Tensor = torch_api.flatten_dense_tensors(bucket.buffers)
    return row


PutBack = Callable[[], object]


def copy_bookkeeping(optimizer: Optimizer) -> PutBack:
    """Copy the structure of the state and all numbers that are not tensors."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    before = state_of(optimizer).items()
    states = {key: (entry, dict(entry) if isinstance(entry, dict) else None) for key, entry in before}

    def put_back() -> None:
        for group, values in zip(optimizer.param_groups, groups, strict=False):
            _restore_items(group, values, keep="params")
        state = state_of(optimizer)
        for key in [key for key in state if key not in states]:
            del state[key]
        for key, (entry, content) in states.items():
            if content is not None:
                _restore_items(entry, content)
            if state.get(key) is not entry:
                state[key] = entry

    return put_back


def copy_everything(optimizer: Optimizer) -> PutBack:
    """Copy weights and state, which needs as much extra memory as the optimizer's state.

    Includes the optimizer's own numbers and tensors, and inner optimizers, such as the base optimizer of SAM.
    """
    members = _with_inner(optimizer)
    undo = [copy_bookkeeping(member) for member in members]
    numbers = [{name: value for name, value in vars(member).items() if type(value) in _NUMBERS} for member in members]
    with torch.no_grad():
        tensors = [copy_weights(optimizer)]
        tensors += [_undo_of(value) for member in members for value in state_of(member).values()]
        tensors += [_undo_of(value) for member in members for value in vars(member).values() if _has_tensors(value)]

    def put_back() -> None:
        for restore in undo:
            restore()
        for member, values in zip(members, numbers, strict=True):
            vars(member).update(values)
        with torch.no_grad():
            for restore in tensors:
                restore()

    return put_back


def copy_weights(optimizer: Optimizer) -> PutBack:
    groups = [group for member in _with_inner(optimizer) for group in member.param_groups]
    weights = {id(parameter): parameter for group in groups for parameter in group["params"]}
    with torch.no_grad():
        undo = [_undo_of(weight) for weight in weights.values()]

    def put_back() -> None:
        with torch.no_grad():
            for restore in undo:
                restore()

    return put_back


_NUMBERS = (bool, int, float)


def _has_tensors(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
    return any(isinstance(item, Tensor) for item in items)


def _with_inner(optimizer: Optimizer) -> list[Optimizer]:
    optimizers = [optimizer]
    for outer in optimizers:  # grows meanwhile
        for value in vars(outer).values():
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, Optimizer) and not any(item is other for other in optimizers):
                    optimizers.append(item)
    return optimizers


def passes_over_none(optimizer: Optimizer) -> bool:
    """Whether its step is known to leave a parameter without a gradient alone.

    Torch's do. Of all others some fail, and some take a missing gradient for zero and move the weights by momentum.
    """
    return str(getattr(type(optimizer).step, "__module__", "")).partition(".")[0] in _OF_KNOWN_STEPS


_OF_KNOWN_STEPS = ("torch", "mlflow_stability")


def _restore_items(now: dict[str, Any], before: dict[str, Any], keep: str = "") -> None:
    for key in [key for key in now if key not in before and key != keep]:
        del now[key]
    now.update(before)


def _undo_of(value: Any) -> PutBack:
    """Return a function that restores a tensor, or everything in a list or dictionary."""
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        return lambda: value.data.copy_(copy)
    if not isinstance(value, dict | list):
        return lambda: None
    entries = value.copy()
    inner = [_undo_of(item) for item in (value.values() if isinstance(value, dict) else value)]

    def undo() -> None:
        value.clear()
        if isinstance(value, dict):
            value.update(entries)
        else:
            value.extend(entries)
        for restore in inner:
            restore()

    return undo
