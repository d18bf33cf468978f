"""Restores buffers after a broken forward pass, and an optimizer after a step that must not count.

In: modules that train, when a capture runs forward first, and whether it was broken; an optimizer before its step.
Out: buffers as they were before that; the optimizer as if the step had not been taken. Guarantees: few kernels for any
number of buffers; tensors keep their addresses and autograd versions; memory stays within the budget; state made
during the step is removed. A buffer that forward has exchanged for another tensor is again the one that it was.
Buffers that are not in a module's state_dict (masks, position tables) are left alone, and those of a model whose
forward passes are not heard go back to one step before, with what the script has written into them since.

Three sizes of optimizer copies: counters alone for a step without gradients, where that is known to do nothing;
weights, for a step that moves them before it asks for gradients; and everything for all others that must not count.
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

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.objects import state_of
from mlflow_stability.recovery.skipping.broken_step_flag import local_part

BUDGET = 64 * 2**20
"""How many bytes of the device the copy may take."""


@dataclass(slots=True)
class _Place:
    module: weakref.ref[Module]
    name: str
    buffer: Tensor
    is_parameter: bool = False
    """As Keras keeps the moving averages of its layers."""

    def now(self) -> Any:
        """What the module holds there; None where the module is gone."""
        module = self.module()
        return None if module is None else (module._parameters if self.is_parameter else module._buffers).get(self.name)


@dataclass(slots=True)
class _Bucket:
    """Buffers of one device and type, and one long copy of them all."""

    places: list[_Place]
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
        self._filled = self.has_buffers = False
        """Whether there is a copy, and anything to be copied."""
        self._versions = 0
        """Of all of them together, as autograd counts them, when the copy was made: they only grow."""
        self.left_out: tuple[str, ...] = ()
        """Names of buffers that did not fit into the budget."""
        self._uncopied: list[_Place] = []
        """Where those are."""
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
        self._copy()

    def undo(self) -> bool:
        """The capture was broken: put the buffers back; False where there is no copy of all of them."""
        if not self._filled:
            return not (self._places or self._uncopied)
        with torch.no_grad():
            for bucket in self._buckets:
                torch_api.foreach_copy_([each.data for each in bucket.buffers], bucket.parts)
        others = [each for each in self._places if not _put_back(each)]
        self._versions = self._sum_of_versions()
        return not (others or self._uncopied)

    def has_broken(self) -> bool:
        """Whether a buffer holds NaN or infinity, as after a broken capture that could not be undone.

        Not where it is negative: masks hold that.
        """
        return not all(map(_is_sound, (*self._places, *self._uncopied)))

    def settle(self, flag: Tensor) -> None:
        """Keep or undo, whichever a flag on the device says; nobody waits for it."""
        if not self._filled or not self._is_current():
            return  # a copy of what may be broken is none; the next sound capture that is known on the host makes one
        with torch.no_grad():
            for bucket in self._buckets:
                broken = flag.to(bucket.copy.device, non_blocking=True) > 0
                bucket.copy.copy_(torch.where(broken, bucket.copy, _row(bucket)))
                torch_api.foreach_copy_([each.data for each in bucket.buffers], bucket.parts)
        self._versions = self._sum_of_versions()

    def forward_began(self) -> None:
        """A capture runs forward first: what was written or exchanged since the last one is the script's own."""
        if self._filled and (self._sum_of_versions() != self._versions or not self._is_current()):
            self._refresh()
            self._copy()

    @property
    def has_copy(self) -> bool:
        """Whether there is something to go back to."""
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
        return sum([sum(map(_VERSION, each.buffers)) for each in self._buckets])

    def _refresh(self) -> None:
        """Follow buffers that were exchanged; where others came, went or have changed their size, look for all anew."""
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
        for place in self._places:
            module = place.module()
            if module is None:
                return False
            held = module._parameters if place.is_parameter else module._buffers
            if held.get(place.name) is not place.buffer:
                return False
        return True

    def _gather(self) -> None:
        self._places, self._uncopied, self._buckets, self._filled = [], [], [], False
        found: dict[tuple[torch.device, torch.dtype], list[_Place]] = {}
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
                    if not _can_be_copied(buffer) or buffer.nbytes > room:
                        left_out.append(f"{path}.{name}" if path else name)
                        self._uncopied.append(place)
                        continue
                    room -= buffer.nbytes
                    self._places.append(place)
                    found.setdefault((buffer.device, buffer.dtype), []).append(place)
        self.left_out, self.has_buffers = tuple(left_out), bool(self._places)
        for (device, dtype), places in found.items():
            buffers = [each.buffer for each in places]
            copy = torch.empty(sum(each.numel() for each in buffers), dtype=dtype, device=device)
            lengths = [each.numel() for each in buffers]
            parts = [part.view(each.shape) for part, each in zip(torch.split(copy, lengths), buffers, strict=True)]
            self._buckets.append(_Bucket(places, buffers, copy, parts))


_COPIES_MANY = ("cpu", "cuda")
"""Devices on which many small copies at once take less than one of them all side by side, which is made first."""
_VERSION: Callable[[Tensor], int] = attrgetter("_version")


def _can_be_copied(buffer: Tensor) -> bool:
    """Not those that are split over processes; those of inference mode no training can write into."""
    return buffer.layout is torch.strided and not hasattr(buffer, "to_local") and not buffer.is_inference()


def _is_alike(now: Any, before: Tensor) -> bool:
    """Whether the copy of one tensor fits another."""
    if not isinstance(now, Tensor) or not _can_be_copied(now):
        return False
    return now.shape == before.shape and now.dtype is before.dtype and now.device == before.device


def _is_sound(place: _Place) -> bool:
    now = place.now()
    if not isinstance(now, Tensor) or not now.is_floating_point() or now.layout is not torch.strided:
        return True
    local = local_part(now).detach()
    return bool(((local.float() if local.itemsize == 1 else local) < math.inf).all())


def _put_back(place: _Place) -> bool:
    """Let the module hold the tensor that was copied; False where it holds something else altogether by now."""
    now = place.now()
    if now is place.buffer:
        return True
    module = place.module()
    if module is None or place.is_parameter or not _is_alike(now, place.buffer):
        return False
    module._buffers[place.name] = place.buffer
    return True


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
    row: Tensor = torch_api.flatten_dense_tensors(bucket.buffers)
    return row


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
    """Remember weights and state, tensors included: as much memory again as the optimizer's state.

    What the optimizer holds beside them counts too: numbers, tensors, and other optimizers, as SAM has one.
    """
    everybody = _with_inner(optimizer)
    bookkeeping = [copy_bookkeeping(each) for each in everybody]
    own = [{name: value for name, value in vars(each).items() if type(value) in _NUMBERS} for each in everybody]
    put_weights_back = copy_weights(optimizer)
    with torch.no_grad():
        undo = [_undo_of(value) for each in everybody for value in state_of(each).values()]
        undo += [_undo_of(value) for each in everybody for value in vars(each).values() if _has_tensors(value)]

    def put_back() -> None:
        for each in bookkeeping:
            each()
        for inner, numbers in zip(everybody, own, strict=True):
            vars(inner).update(numbers)
        put_weights_back()
        with torch.no_grad():
            for each in undo:
                each()

    return put_back


def copy_weights(optimizer: Optimizer) -> PutBack:
    """Remember the weights alone."""
    groups = [group for each in _with_inner(optimizer) for group in each.param_groups]
    weights = {id(each): each for group in groups for each in group["params"]}
    with torch.no_grad():
        undo = [_undo_of(each) for each in weights.values()]

    def put_back() -> None:
        with torch.no_grad():
            for each in undo:
                each()

    return put_back


_NUMBERS = (bool, int, float)


def _has_tensors(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
    return any(isinstance(each, Tensor) for each in inner)


def _with_inner(optimizer: Optimizer) -> list[Optimizer]:
    """An optimizer, and those that it steps itself."""
    found = {id(optimizer): optimizer}
    waiting = [optimizer]
    while waiting:
        for value in vars(waiting.pop()).values():
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, Optimizer) and id(each) not in found:
                    found[id(each)] = each
                    waiting.append(each)
    return list(found.values())


def passes_over_none(optimizer: Optimizer) -> bool:
    """Whether its step is known to leave a parameter without a gradient alone.

    Torch's do. Of all others some fail, and some take a missing gradient for zero and move the weights by momentum.
    """
    return str(getattr(type(optimizer).step, "__module__", "")).partition(".")[0] in _OF_KNOWN_STEPS


_OF_KNOWN_STEPS = ("torch", "mlflow_stability")


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
