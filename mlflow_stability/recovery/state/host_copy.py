"""Copies of tensors on the host, each storage once, and the free memory of the host.

In: tensors. Out: their copies, their size, and whether all of them are finite; free memory, in a container too.
Guarantees: bit for bit, strides included; on an accelerator copies are started without waiting, and read only once
they arrived; version counters stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api

_Key = tuple[Any, ...]


class HostCopies:
    """Copies of tensors, found again by the tensor that they were made of."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.nbytes = 0
        """How much memory they take."""
        self._copies: dict[_Key, Tensor] = {}
        with torch.no_grad():
            pairs = self._allocated(_by_storage(tensors))
            devices = {source.device for source, _ in pairs if source.device.type != "cpu"}
            self._began = [_event(each) for each in devices]
            if pairs:
                torch_api.foreach_copy_([copy for _, copy in pairs], [source for source, _ in pairs], non_blocking=True)
            self._arrived = [_event(each) for each in devices]

    def of(self, tensor: Tensor) -> Tensor:
        """The copy of this tensor."""
        return self._copies[_key(local_part(tensor))]

    def all(self) -> list[Tensor]:
        """The copies, in the order in which their tensors came, shared ones once."""
        return list(self._copies.values())

    def have_arrived(self) -> bool:
        """Whether they can be read without waiting."""
        return all(each.query() for each in self._arrived)

    def wait(self) -> None:
        """Wait until they can be read."""
        for each in self._arrived:
            each.synchronize()

    def device_seconds(self) -> float:
        """How long the slowest device was busy with them; 0 on the CPU, and while they are on their way."""
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


_MEMORY = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """How many bytes this process may still take, as far as the system tells."""
    free = _available()
    try:
        limit = (_CONTAINER / "memory.max").read_text().strip()
        used = int((_CONTAINER / "memory.current").read_text())
        cached = _entry((_CONTAINER / "memory.stat").read_text(), "inactive_file")
    except OSError:  # no such container: the machine's memory is the limit
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used + cached))


def _available() -> int:
    try:
        return 1024 * _entry(_MEMORY.read_text(), "MemAvailable:")
    except OSError:  # not Linux; half of all there is is a safe guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _entry(text: str, name: str) -> int:
    """The number in the line that begins with this name; 0 where there is none."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name + " ")), 0)
