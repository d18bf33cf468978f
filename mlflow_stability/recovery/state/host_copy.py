"""Copies of tensors on the host, each storage once, and whether their values are finite.

Guarantees: bit for bit, strides included; copies from an accelerator start without waiting, and are read only once they
arrived; autograd versions stay.

On an accelerator with streams, large copies run beside the training: tensors are copied on the device first, in the
stream of the training, and from there to the host in another stream. The training may change its tensors at once. What
does not fit the budget of device memory is copied in the stream of the training.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.gradient_norm import local_part
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.tensor_sums import copy_budget

_Key = tuple[Any, ...]
_Pair = tuple[Tensor, Tensor]  # source and target
SMALLEST_STAGED = 2**20  # bytes; less is copied faster than a second stream is started
WITH_STREAMS = frozenset({"cuda", "xpu"})


class HostCopies:
    def __init__(self, tensors: Iterable[Tensor], device_budget: int | None = None) -> None:
        self.nbytes = 0
        self._copies: dict[_Key, Tensor] = {}
        with torch.no_grad():
            pairs = self._allocate(_by_storage(tensors))
            devices = {source.device for source, _ in pairs if source.device.type != "cpu"}
            self._began = [_event(device) for device in devices]
            self._beside = []
            """Events in the streams beside those of the training."""
            for device in devices:
                pairs, arrived = _copy_beside(pairs, device, device_budget)
                self._beside += arrived
            _copy_all(pairs)
            self._arrived = [_event(device) for device in devices]

    def of(self, tensor: Tensor) -> Tensor:
        return self._copies[_key(local_part(tensor))]

    def __contains__(self, tensor: Tensor) -> bool:
        return _key(local_part(tensor)) in self._copies

    def all(self) -> list[Tensor]:
        """Return the copies in the order of their tensors, shared ones once."""
        return list(self._copies.values())

    def have_arrived(self) -> bool:
        return all(event.query() for event in (*self._arrived, *self._beside))

    def wait(self) -> None:
        for event in (*self._arrived, *self._beside):
            event.synchronize()

    def device_seconds(self) -> float:
        """Return how long they delayed the slowest device; 0 on the CPU, and until they arrived."""
        if not self._arrived or not self.have_arrived():
            return 0.0
        times = (began.elapsed_time(arrived) for began, arrived in zip(self._began, self._arrived, strict=True))
        return float(max(times)) / 1e3

    def _allocate(self, groups: Iterable[list[Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """Allocate the copies of dense tensors, and copy the others at once."""
        pairs = []
        for group in groups:
            whole = _whole_storage(group)
            if whole is not None:
                made = _empty_like(whole)
                pairs.append((whole, made))
                first = min(member.storage_offset() for member in group)
                for tensor in group:
                    view = made.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - first)
                    self._copies[_key(tensor)] = view
                self.nbytes += made.nbytes
                continue
            for tensor in group:
                if tensor.layout is torch.strided:
                    made = _empty_like(tensor)
                    pairs.append((tensor.detach(), made))
                else:
                    made = tensor.detach().cpu().clone()
                self._copies[_key(tensor)] = made
                self.nbytes += bytes_of(made)
        return pairs


def bytes_of(tensor: Tensor) -> int:
    tensor = local_part(tensor)
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    indices = (tensor.crow_indices(), tensor.col_indices()) if by_row else (tensor.ccol_indices(), tensor.row_indices())
    return sum(part.nbytes for part in (tensor.values(), *indices))


def _by_storage(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors by storage and type, each view once."""
    groups: dict[_Key, dict[_Key, Tensor]] = {}
    for tensor in tensors:
        part = local_part(tensor)
        key = _key(part)
        if part.layout is torch.strided and part.numel():
            groups.setdefault((part.untyped_storage().data_ptr(), part.dtype, part.device), {})[key] = part
        else:
            groups.setdefault(key, {})[key] = part
    return [list(views.values()) for views in groups.values()]


def _whole_storage(group: Sequence[Tensor]) -> Tensor | None:
    """Return the range of a storage under several views, where that is smaller than the views."""
    if len(group) < 2:
        return None
    first = min(view.storage_offset() for view in group)
    last = max(view.storage_offset() + _reach(view) for view in group)
    if (last - first) > sum(view.numel() for view in group):
        return None
    return group[0].detach().as_strided((last - first,), (1,), first)


def _reach(tensor: Tensor) -> int:
    """Return the number of elements that a view spans."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _key(tensor: Tensor) -> _Key:
    if tensor.layout is not torch.strided or not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.dtype, tensor.device, tensor.shape, tensor.stride())


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda", requires_grad=False)


def _event(device: torch.device) -> Any:
    made = torch.get_device_module(device).Event(enable_timing=True)
    made.record(torch.accelerator.current_stream(device))
    return made


def _copy_all(pairs: Sequence[_Pair]) -> None:
    if pairs:
        torch_api.foreach_copy_([copy for _, copy in pairs], [source for source, _ in pairs], non_blocking=True)


def _copy_beside(pairs: list[_Pair], device: torch.device, budget: int | None) -> tuple[list[_Pair], list[Any]]:
    """Start copies beside this device's training; return the remaining pairs and the events to wait for."""
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
    for stage in staged:  # freed when this function ends: its memory must not be reused before the transfer is over
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
"""Limit, usage and reclaimable memory in control groups of version 1 and 2."""


def free_memory() -> int:
    """Return how many bytes this process may still take, in a container too."""
    return int(max(0, min([_available(), *(_free_in_group(*group) for group in _own_groups())])))


def _own_groups() -> list[tuple[Path, tuple[str, str, str]]]:
    """Return the control groups of this process, innermost first: batch systems nest them."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return []
    groups = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root, names = _CONTAINER, _LIMITS_2
        elif "memory" in controllers.split(","):
            root, names = _CONTAINER / "memory", _LIMITS_1
        else:
            continue
        own = [name for name in path.split("/") if name not in ("", "..")]
        # A container may see its own group as the root, and not under the path that it has outside.
        groups += [(root.joinpath(*own[:depth]), names) for depth in range(len(own), -1, -1)]
    return groups


def _free_in_group(group: Path, names: tuple[str, str, str]) -> float:
    limit, used, cached = names
    try:
        most = (group / limit).read_text().strip()
        if most == "max":
            return math.inf
        given_back = _entry((group / "memory.stat").read_text(), cached)
        return int(most) - int((group / used).read_text()) + given_back
    except OSError:  # the outermost group has no limit; a container does not see all groups
        return math.inf


def _available() -> int:
    try:
        return 1024 * _entry(_MEMORY.read_text(), "MemAvailable:")
    except OSError:  # not Linux; half of all there is is a safe guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _entry(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name + " ")), 0)


_NARROW = (torch.float16, torch.bfloat16)


class FiniteCheck:
    """Whether tensors are finite: computed on their device, read later.

    A norm that overflows decides nothing: the values themselves are checked. Tensors on the host are checked on their
    copy, when the result is asked for.
    """

    def __init__(self, tensors: Mapping[str, Tensor], copies: HostCopies, untrained: Collection[str] = ()) -> None:
        self._copies = copies
        self._untrained = frozenset(untrained)  # buffers and frozen parameters
        self._hosts: dict[str, Tensor] = {}
        far: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            part = local_part(tensor)
            if not _is_floating(part) or not (part := _values(part)).numel():
                continue
            self._hosts[name] = copies.of(tensor)
            if not part.is_cpu:
                far[name] = part
        self._far = list(far)
        self._answers = HostCopies(_norms(list(far.values())))
        self._rows = self._answers.all()
        self._found: frozenset[str] | None = None

    def not_finite(self) -> frozenset[str]:
        """Return the names of tensors with NaN or infinity; waits for the device."""
        if self._found is None:
            self._answers.wait()
            self._copies.wait()
            far = set(self._far)
            near = [name for name in self._hosts if name not in far]
            rows = [*self._rows, *_norms([_values(self._hosts[name]) for name in near])]
            finite = (is_finite for row in rows for is_finite in row.isfinite().tolist())
            suspects = [name for name, is_finite in zip([*self._far, *near], finite, strict=True) if not is_finite]
            self._found = frozenset(name for name in suspects if not _values(self._hosts[name]).isfinite().all())
        return self._found

    def infinite_masks(self) -> frozenset[str]:
        """Return the buffers and frozen parameters with infinities but no NaN, as masks have."""
        names = self.not_finite() & self._untrained
        return frozenset(name for name in names if not bool(self._hosts[name].isnan().any()))


def is_finite(tensor: Tensor, *, may_be_infinite: bool = False) -> bool:
    """Whether a tensor is finite; `may_be_infinite`: holds no NaN. Waits for the device."""
    if not _is_floating(tensor):
        return True
    values = _values(local_part(tensor))
    if bool(torch.isfinite(values.sum())):  # unless the sum itself overflowed
        return True
    return not bool(values.isnan().any()) if may_be_infinite else bool(torch.isfinite(values).all())


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Compute norms in the order of the tensors, neighbours of one type in one kernel."""
    rows: list[Tensor] = []
    for (dtype, _), neighbours in groupby(tensors, key=lambda tensor: (tensor.dtype, tensor.device)):
        wide = torch.float32 if dtype in _NARROW else None
        rows.append(torch.stack(list(torch_api.foreach_norm(list(neighbours), 2.0, wide))))
    return rows


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _values(tensor: Tensor) -> Tensor:
    """Return floating-point values wide enough to be summed."""
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    return tensor.detach().float() if tensor.itemsize == 1 else tensor.detach()
