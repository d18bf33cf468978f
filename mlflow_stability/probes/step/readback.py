"""What probes measured on the device, and its copy to the host; the only module that copies to it.

Nothing synchronises: values on the CPU are read at once; on an accelerator one copy is started without waiting, and
read when a later capture ends and the copy has arrived. Only `drain`, at the end of a recording, waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.vocabulary.measured.signal import Signal


@dataclass(frozen=True, slots=True)
class Block:
    signals: tuple[Signal, ...]
    """The same objects as long as the same things are measured: whoever reads them may go by identity."""
    values: Tensor | tuple[float, ...]  # one row, still on its device; or numbers of the host
    on_host: Callable[[Sequence[float]], Sequence[float]] | None = None
    """Makes of the row, once it has arrived, one value for each signal; None: it has them already."""


@lru_cache(maxsize=1024)
def signals_at(quantities: tuple[str, ...], *places: str) -> tuple[Signal, ...]:
    """Return a signal for each quantity and place: the same objects each time."""
    return tuple([Signal(quantity, place) for quantity in quantities for place in places])


Rows = list[list[float]]
Reader = Callable[[Sequence[float], Rows], None]  # receives the values of the scalars, and those of each row


@dataclass(slots=True)
class _Pending:
    host: Tensor
    arrived: Any  # an event of the accelerator's stream
    order: list[int]
    on_host: list[tuple[int, float]]
    rows: list[int | list[float]]  # for each row its length behind the scalars, or its values where it was on the host
    reader: Reader


class Readback:
    """Copies values to the host in order."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def fetch(self, scalars: Sequence[Tensor | float], reader: Reader, rows: Sequence[Tensor] = ()) -> None:
        """Pass the values to `reader`: now, or when they have arrived."""
        values: list[float] = []
        on_device = bool(rows) and not all(row.is_cpu for row in rows)
        for scalar in () if on_device else scalars:
            if type(scalar) is float or not isinstance(scalar, Tensor):
                values.append(scalar)
            elif scalar.is_cpu:
                values.append(scalar.item())
            else:
                on_device = True
                break
        if not on_device:
            if self._pending:
                self.drain()  # a capture on an accelerator may still be on its way, and comes first
            reader(values, [row.tolist() for row in rows] if rows else [])
            return
        far = [
            (number, scalar)
            for number, scalar in enumerate(scalars)
            if isinstance(scalar, Tensor) and not scalar.is_cpu
        ]
        self._start(scalars, far, rows, reader)
        self.deliver()

    def deliver(self) -> None:
        """Read the values that have arrived."""
        while self._pending and self._pending[0].arrived.query():
            self._read(self._pending.popleft())

    def drain(self) -> None:
        """Wait for all values, and read them."""
        while self._pending:
            pending = self._pending.popleft()
            pending.arrived.synchronize()
            self._read(pending)

    def _start(
        self, scalars: Sequence[Tensor | float], far: list[tuple[int, Tensor]], rows: Sequence[Tensor], reader: Reader
    ) -> None:
        far_rows = [row for row in rows if not row.is_cpu]
        device = far[-1][1].device if far else far_rows[-1].device
        wide = torch.float64 if device.type == "cuda" else torch.float32  # Apple's GPUs have no double
        with torch.no_grad():
            parts = [row.detach().to(device, wide, non_blocking=True) for row in far_rows]
            if far:
                single = [scalar.detach().reshape(()).to(device, non_blocking=True) for _, scalar in far]
                parts.insert(0, _row(single, wide))
            row = torch.cat(parts) if len(parts) > 1 else parts[0]
            host = torch.empty(len(row), dtype=wide, device="cpu", pin_memory=device.type == "cuda")
            host.copy_(row, non_blocking=True)
        arrived = torch.get_device_module(device).Event()
        arrived.record(torch.accelerator.current_stream(device))
        far_numbers = [number for number, _ in far]
        near = [
            (number, scalar.item() if isinstance(scalar, Tensor) else scalar)
            for number, scalar in enumerate(scalars)
            if number not in far_numbers
        ]
        lengths = [row.tolist() if row.is_cpu else len(row) for row in rows]
        self._pending.append(_Pending(host, arrived, far_numbers, near, lengths, reader))

    @staticmethod
    def _read(pending: _Pending) -> None:
        arrived = iter(pending.host.tolist())
        values = dict(pending.on_host)
        values.update((number, next(arrived)) for number in pending.order)
        rows = [[next(arrived) for _ in range(row)] if isinstance(row, int) else row for row in pending.rows]
        pending.reader([values[number] for number in range(len(values))], rows)


def _row(scalars: Sequence[Tensor], wide: torch.dtype) -> Tensor:
    """One tensor of all scalars, in a few kernels for any number."""
    if len({scalar.dtype for scalar in scalars}) == 1:
        return torch.stack(list(scalars)).to(wide)
    return torch.stack([scalar.to(wide) for scalar in scalars])


cpu_value: Callable[[Tensor], float] = Tensor.item
"""Return the value of a scalar on the host; a C function, because it runs at every step."""


def value_on_host(scalar: Tensor) -> float | None:
    """Return the value of a scalar on the host; None where it is on a device."""
    return scalar.item() if scalar.is_cpu else None


def values_on_host(row: Tensor) -> list[float]:
    """Return the values of a row on the host."""
    assert row.is_cpu
    values: list[float] = row.tolist()
    return values


class Parcel:
    """Whole tensors on their way to the host.

    They are copied without waiting, and may be freed on the device as soon as this is created.
    """

    __slots__ = ("_arrived", "_host")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        far = next((tensor.device for tensor in tensors if not tensor.is_cpu), None)
        self._arrived: Any = None
        if far is None:
            self._host = [tensor.detach() for tensor in tensors]
            return
        pinned = far.type == "cuda"
        self._host = [
            torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned) for tensor in tensors
        ]
        for host, tensor in zip(self._host, tensors, strict=True):
            host.copy_(tensor.detach(), non_blocking=True)
        self._arrived = torch.get_device_module(far).Event()
        self._arrived.record(torch.accelerator.current_stream(far))

    @property
    def arrived(self) -> bool:
        """Whether `opened` would not wait."""
        return self._arrived is None or bool(self._arrived.query())

    def opened(self) -> list[Any]:
        """Return the tensors as arrays; waits for those that have not arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._arrived = None
        return [host.numpy() for host in self._host]
