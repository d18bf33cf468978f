"""Brings numbers from the device to the host: the only place that does.

In: scalars of one cycle, as they lie on the device. Out: their values. Promised: no synchronisation. On the CPU the
values are read at once. On an accelerator one copy is started without waiting, and read when a later cycle ends and
the copy has arrived; only `drain`, at the end of a recording, waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Reader = Callable[[Sequence[float]], None]


@dataclass(slots=True)
class _Pending:
    host: Tensor
    arrived: Any
    """An event of the accelerator's stream."""
    order: list[int]
    on_host: list[tuple[int, float]]
    reader: Reader


class Readback:
    """The way back from the device, in order."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def fetch(self, scalars: Sequence[Tensor | float], reader: Reader) -> None:
        """Give the values to `reader`: now, or as soon as they have arrived."""
        far = [(number, each) for number, each in enumerate(scalars) if isinstance(each, Tensor) and not each.is_cpu]
        if not far:
            self.drain()  # a cycle on an accelerator may still be on its way, and comes first
            reader([each.item() if isinstance(each, Tensor) else each for each in scalars])
            return
        self._start(scalars, far, reader)
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

    def _start(self, scalars: Sequence[Tensor | float], far: list[tuple[int, Tensor]], reader: Reader) -> None:
        device = far[-1][1].device
        wide = torch.float64 if device.type == "cuda" else torch.float32  # Apple's GPUs have no double
        with torch.no_grad():
            row = _row([each.detach().reshape(()).to(device, non_blocking=True) for _, each in far], wide)
            host = torch.empty(len(far), dtype=wide, device="cpu", pin_memory=device.type == "cuda")
            host.copy_(row, non_blocking=True)
        arrived = torch.get_device_module(device).Event()
        arrived.record(torch.accelerator.current_stream(device))
        far_numbers = [number for number, _ in far]
        near = [
            (number, each.item() if isinstance(each, Tensor) else each)
            for number, each in enumerate(scalars)
            if number not in far_numbers
        ]
        self._pending.append(_Pending(host, arrived, far_numbers, near, reader))

    @staticmethod
    def _read(pending: _Pending) -> None:
        values = dict(pending.on_host)
        values.update(zip(pending.order, pending.host.tolist(), strict=True))
        pending.reader([values[number] for number in range(len(values))])


def _row(scalars: Sequence[Tensor], wide: torch.dtype) -> Tensor:
    """One tensor of all of them, in a few kernels however many they are."""
    if len({each.dtype for each in scalars}) == 1:
        return torch.stack(list(scalars)).to(wide)
    return torch.stack([each.to(wide) for each in scalars])
