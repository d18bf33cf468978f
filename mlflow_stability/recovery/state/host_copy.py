"""Copies of tensors on the host, each storage once, and the free memory of the host.

In: tensors. Out: their copies, their size, and whether all of them are finite; free memory, in a container too.
Guarantees: bit for bit, strides included; on an accelerator copies are started without waiting, and read only once
they arrived; version counters stay.

An accelerator that has streams makes most of a large copy beside the training: the tensors are copied on the device
first, in the stream of the training, and those copies go to the host in a stream of their own. The training may change
its tensors at once, and by whatever means; it waits for no transfer. What does not fit the budget of device memory is
transferred in the stream of the training.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.tensors import copy_budget

_Key = tuple[Any, ...]
_Pair = tuple[Tensor, Tensor]
"""What is copied, and where it goes."""
SMALLEST_STAGED = 2**20
"""Bytes; less than this is transferred faster than a second stream is told of it."""
WITH_STREAMS = frozenset({"cuda", "xpu"})


class HostCopies:
    """Copies of tensors, found again by the tensor that they were made of."""

    def __init__(self, tensors: Iterable[Tensor], device_budget: int | None = None) -> None:
        self.nbytes = 0
        """How much memory they take."""
        self._copies: dict[_Key, Tensor] = {}
        with torch.no_grad():
            pairs = self._allocated(_by_storage(tensors))
            devices = {source.device for source, _ in pairs if source.device.type != "cpu"}
            self._began = [_event(each) for each in devices]
            self._beside = []
            """Marks in the streams beside those of the training."""
            for device in devices:
                pairs, arrived = _copy_beside(pairs, device, device_budget)
                self._beside += arrived
            _copy_all(pairs)
            self._arrived = [_event(each) for each in devices]

    def of(self, tensor: Tensor) -> Tensor:
        """The copy of this tensor."""
        return self._copies[_key(local_part(tensor))]

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether there is a copy of this tensor."""
        return _key(local_part(tensor)) in self._copies

    def all(self) -> list[Tensor]:
        """The copies, in the order in which their tensors came, shared ones once."""
        return list(self._copies.values())

    def have_arrived(self) -> bool:
        """Whether they can be read without waiting."""
        return all(each.query() for each in (*self._arrived, *self._beside))

    def wait(self) -> None:
        """Wait until they can be read."""
        for each in (*self._arrived, *self._beside):
            each.synchronize()

    def device_seconds(self) -> float:
        """How long they held up the slowest device's training; 0 on the CPU, and while they are on their way."""
        if not self._arrived or not self.have_arrived():
            return 0.0
        times = (began.elapsed_time(arrived) for began, arrived in zip(self._began, self._arrived, strict=True))
        return float(max(times)) / 1e3

    def _allocated(self, groups: Iterable[list[Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """What is to be copied where; dense tensors alone, the few others are copied here."""
        pairs = []
        for group in groups:
            whole = _whole_storage(group)
            if whole is not None:
                made = _empty_like(whole)
                pairs.append((whole, made))
                first = min(each.storage_offset() for each in group)
                for each in group:
                    view = made.as_strided(each.shape, each.stride(), each.storage_offset() - first)
                    self._copies[_key(each)] = view
                self.nbytes += made.nbytes
                continue
            for each in group:
                if each.layout is torch.strided:
                    made = _empty_like(each)
                    pairs.append((each.detach(), made))
                else:
                    made = each.detach().cpu().clone()
                self._copies[_key(each)] = made
                self.nbytes += bytes_of(made)
        return pairs


def bytes_of(tensor: Tensor) -> int:
    """How many bytes a copy of this tensor takes."""
    tensor = local_part(tensor)
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    indices = (tensor.crow_indices(), tensor.col_indices()) if by_row else (tensor.ccol_indices(), tensor.row_indices())
    return sum(each.nbytes for each in (tensor.values(), *indices))


def local_part(tensor: Tensor) -> Tensor:
    """What of a tensor lies in this process: of one that is split over several, its shard."""
    shard = getattr(tensor, "_local_tensor", None)
    return shard if isinstance(shard, Tensor) else tensor


def _by_storage(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Tensors of one storage and type together, each view once."""
    groups: dict[_Key, dict[_Key, Tensor]] = {}
    for tensor in tensors:
        part = local_part(tensor)
        key = _key(part)
        if part.layout is torch.strided and part.numel():
            groups.setdefault((part.untyped_storage().data_ptr(), part.dtype, part.device), {})[key] = part
        else:
            groups.setdefault(key, {})[key] = part
    return [list(each.values()) for each in groups.values()]


def _whole_storage(group: Sequence[Tensor]) -> Tensor | None:
    """The stretch of a storage under several views, where that is less than the views one by one."""
    if len(group) < 2:
        return None
    first = min(each.storage_offset() for each in group)
    last = max(each.storage_offset() + _reach(each) for each in group)
    if (last - first) > sum(each.numel() for each in group):
        return None
    return group[0].detach().as_strided((last - first,), (1,), first)


def _reach(tensor: Tensor) -> int:
    """From the first element of a view to behind its last one in memory."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _key(tensor: Tensor) -> _Key:
    if tensor.layout is not torch.strided or not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.dtype, tensor.device, tensor.shape, tensor.stride())


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda", requires_grad=False)


def _event(device: torch.device) -> Any:
    """A mark in the stream of the device."""
    made = torch.get_device_module(device).Event(enable_timing=True)
    made.record(torch.accelerator.current_stream(device))
    return made


def _copy_all(pairs: Sequence[_Pair]) -> None:
    if pairs:
        torch_api.foreach_copy_([copy for _, copy in pairs], [source for source, _ in pairs], non_blocking=True)


def _copy_beside(pairs: list[_Pair], device: torch.device, budget: int | None) -> tuple[list[_Pair], list[Any]]:
    """Start copying what can be copied beside this device's training; gives the other pairs, and a mark to wait for."""
    if device.type not in WITH_STREAMS:
        return pairs, []
    room = copy_budget(device) if budget is None else budget
    chosen: list[_Pair] = []
    others: list[_Pair] = []
    for pair in pairs:
        fits = pair[0].device == device and pair[0].nbytes <= room
        (chosen if fits else others).append(pair)
        room -= pair[0].nbytes * fits
    if sum(source.nbytes for source, _ in chosen) < SMALLEST_STAGED:
        return pairs, []
    try:
        staged = [torch.empty_like(source) for source, _ in chosen]
    except torch.OutOfMemoryError:
        return pairs, []
    _copy_all([(source, stage) for (source, _), stage in zip(chosen, staged, strict=True)])
    beside = _stream_beside(device)
    beside.wait_stream(torch.accelerator.current_stream(device))
    with torch.get_device_module(device).stream(beside):
        _copy_all([(stage, copy) for (_, copy), stage in zip(chosen, staged, strict=True)])
    for stage in staged:  # given back when this function ends: nobody may get its memory before the transfer is over
        stage.record_stream(beside)
    arrived = torch.get_device_module(device).Event()
    arrived.record(beside)
    return others, [arrived]


@cache
def _stream_beside(device: torch.device) -> Any:
    return torch.get_device_module(device).Stream(device)


_MEMORY = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_LIMITS_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_LIMITS_2 = "memory.max", "memory.current", "inactive_file"
"""Of control groups of version 1 and 2: the limit, what is used, and how much of that can be given back."""


def free_memory() -> int:
    """How many bytes this process may still take, as far as the system tells: as little as any group of it may."""
    return int(max(0, min([_available(), *(_free_in_group(*each) for each in _own_groups())])))


def _own_groups() -> list[tuple[Path, tuple[str, str, str]]]:
    """The control groups of this process that limit memory, from the innermost out; batch systems nest them."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root, names = _CONTAINER, _LIMITS_2
        elif "memory" in controllers.split(","):
            root, names = _CONTAINER / "memory", _LIMITS_1
        else:
            continue
        own = [each for each in path.split("/") if each not in ("", "..")]
        # A container may see its own group as the root, and not under the path that it has outside.
        found += [(root.joinpath(*own[:depth]), names) for depth in range(len(own), -1, -1)]
    return found


def _free_in_group(group: Path, names: tuple[str, str, str]) -> float:
    """What is left of a group's memory; infinite where it has no limit."""
    limit, used, cached = names
    try:
        most = (group / limit).read_text().strip()
        if most == "max":
            return math.inf
        given_back = _entry((group / "memory.stat").read_text(), cached)
        return int(most) - int((group / used).read_text()) + given_back
    except OSError:  # the outermost group has no limit; in a container not every one is seen
        return math.inf


def _available() -> int:
    try:
        return 1024 * _entry(_MEMORY.read_text(), "MemAvailable:")
    except OSError:  # not Linux; half of all there is is a safe guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _entry(text: str, name: str) -> int:
    """The number in the line that begins with this name; 0 where there is none."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name + " ")), 0)
