"""Brings numbers from the device to the host: the only place that does.

In: scalars and rows of one capture, as they lie on the device. Out: their values. Guarantees: no synchronisation. On
the CPU the values are read at once. On an accelerator one copy is started without waiting, and read when a later
capture ends and the copy has arrived; only `drain`, at the end of a recording, waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Rows = list[list[float]]
Reader = Callable[[Sequence[float], Rows], None]
"""Takes the values of the scalars, and those of each row."""


@dataclass(slots=True)
class _Pending:
    host: Tensor
    arrived: Any
    """An event of the accelerator's stream."""
    order: list[int]
    on_host: list[tuple[int, float]]
    rows: list[int | list[float]]
    """Of each row its length behind the scalars, or its values where it was on the host already."""
    reader: Reader


class Readback:
    """The way back from the device, in order."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def fetch(self, scalars: Sequence[Tensor | float], reader: Reader, rows: Sequence[Tensor] = ()) -> None:
        """Give the values to `reader`: now, or as soon as they have arrived."""
        values: list[float] = []
        is_far = bool(rows) and not all(row.is_cpu for row in rows)
        for each in () if is_far else scalars:
            if type(each) is float or not isinstance(each, Tensor):
                values.append(each)
            elif each.is_cpu:
                values.append(each.item())
            else:
                is_far = True
                break
        if not is_far:
            if self._pending:
                self.drain()  # a capture on an accelerator may still be on its way, and comes first
            reader(values, [each.tolist() for each in rows] if rows else [])
            return
        far = [(number, each) for number, each in enumerate(scalars) if isinstance(each, Tensor) and not each.is_cpu]
        self._start(scalars, far, rows, reader)
        self.deliver()

    def deliver(self) -> None:
        """Read whatever has arrived."""
        while self._pending and self._pending[0].arrived.query():
            self._read(self._pending.popleft())

    def drain(self) -> None:
        """Wait for what is on its way, and read it."""
        while self._pending:
            pending = self._pending.popleft()
            pending.arrived.synchronize()
            self._read(pending)

    def _start(
        self,
        scalars: Sequence[Tensor | float],
        far: list[tuple[int, Tensor]],
        rows: Sequence[Tensor],
        reader: Reader,
    ) -> None:
        far_rows = [each for each in rows if not each.is_cpu]
        device = far[-1][1].device if far else far_rows[-1].device
        wide = torch.float64 if device.type == "cuda" else torch.float32  # Apple's GPUs have no double
        with torch.no_grad():
            parts = [each.detach().to(device, wide, non_blocking=True) for each in far_rows]
            if far:
                single = [each.detach().reshape(()).to(device, non_blocking=True) for _, each in far]
                parts.insert(0, _row(single, wide))
            row = torch.cat(parts) if len(parts) > 1 else parts[0]
            host = torch.empty(len(row), dtype=wide, device="cpu", pin_memory=device.type == "cuda")
            host.copy_(row, non_blocking=True)
        arrived = torch.get_device_module(device).Event()
        arrived.record(torch.accelerator.current_stream(device))
        far_numbers = [number for number, _ in far]
        near = [
            (number, each.item() if isinstance(each, Tensor) else each)
            for number, each in enumerate(scalars)
            if number not in far_numbers
        ]
        lengths = [each.tolist() if each.is_cpu else len(each) for each in rows]
        self._pending.append(_Pending(host, arrived, far_numbers, near, lengths, reader))

    @staticmethod
    def _read(pending: _Pending) -> None:
        arrived = iter(pending.host.tolist())
        values = dict(pending.on_host)
        values.update((number, next(arrived)) for number in pending.order)
        rows = [[next(arrived) for _ in range(each)] if isinstance(each, int) else each for each in pending.rows]
        pending.reader([values[number] for number in range(len(values))], rows)


def _row(scalars: Sequence[Tensor], wide: torch.dtype) -> Tensor:
    """One tensor of all of them, in a few kernels however many they are."""
    if len({each.dtype for each in scalars}) == 1:
        return torch.stack(list(scalars)).to(wide)
    return torch.stack([each.to(wide) for each in scalars])


cpu_value: Callable[[Tensor], float] = Tensor.item
"""The value of a scalar that is known to lie on the host: no function of ours, for what runs at every step."""


def value_on_host(scalar: Tensor) -> float | None:
    """The value of a scalar that lies on the host anyway; None where a device would have to be waited for."""
    return scalar.item() if scalar.is_cpu else None


def values_on_host(row: Tensor) -> list[float]:
    """The values of a row that lies on the host anyway."""
    assert row.is_cpu
    values: list[float] = row.tolist()
    return values


class Parcel:
    """Whole tensors on their way to the host, for what is too large for a row of numbers.

    They are copied without waiting, and may go from the device as soon as this is made.
    """

    __slots__ = ("_arrived", "_host")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        far = next((each.device for each in tensors if not each.is_cpu), None)
        self._arrived: Any = None
        if far is None:
            self._host = [each.detach() for each in tensors]
            return
        pinned = far.type == "cuda"
        self._host = [torch.empty(each.shape, dtype=each.dtype, device="cpu", pin_memory=pinned) for each in tensors]
        for host, each in zip(self._host, tensors, strict=True):
            host.copy_(each.detach(), non_blocking=True)
        self._arrived = torch.get_device_module(far).Event()
        self._arrived.record(torch.accelerator.current_stream(far))

    @property
    def arrived(self) -> bool:
        """Whether `opened` would not wait."""
        return self._arrived is None or bool(self._arrived.query())

    def opened(self) -> list[Any]:
        """The tensors as arrays; waits for those that have not arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._arrived = None
        return [each.numpy() for each in self._host]
