"""A stand-in for an accelerator: its copies to the host arrive when a test says so, and hold NaN until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


class LateDevice:
    """Its queue of copies, which are made in order."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []
        self.done = 0
        self.waits = 0
        """How often somebody waited for it."""

    def finish(self, count: int | None = None) -> None:
        """Make the next copies, or all."""
        for _ in range(len(self.waiting) if count is None else count):
            self.waiting.pop(0)()
            self.done += 1

    def tensor(self, values: Any) -> Tensor:
        """A tensor on this device."""
        made = torch.tensor(values).as_subclass(_Far)
        made.queue = self
        return made

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let torch give out its events and streams."""
        patch.setattr(torch.xpu, "Event", lambda: _Event(self))
        patch.setattr(torch.accelerator, "current_stream", lambda device=None: None)


class _Event:
    """Has passed once all copies are made that were asked for before it."""

    def __init__(self, queue: LateDevice) -> None:
        self._queue = queue
        self._after = 0

    def record(self, stream: object = None) -> None:
        self._after = self._queue.done + len(self._queue.waiting)

    def query(self) -> bool:
        return self._queue.done >= self._after

    def synchronize(self) -> None:
        self._queue.waits += not self.query()
        self._queue.finish(max(0, self._after - self._queue.done))


class _Far(Tensor):
    """Lies on the CPU, and says that it does not."""

    queue: LateDevice

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("xpu")

    def to(self, *where: Any, **how: Any) -> Tensor:
        types = [each for each in where if isinstance(each, torch.dtype)]
        return super().to(*types) if types else self

    @classmethod
    def __torch_function__(
        cls, called: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(called, "__name__", "")
        assert name not in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"), f"{name} waits for the device"
        if called is Tensor.copy_ and type(arguments[0]) is Tensor:
            host, far = arguments[0], arguments[1]
            plain = far.as_subclass(Tensor).clone()
            host.fill_(float("nan"))
            _queue_of(arguments).waiting.append(lambda: host.copy_(plain))
            return host
        made = super().__torch_function__(called, types, arguments, named or {})
        if isinstance(made, _Far):
            made.queue = _queue_of(arguments)
        return made


def _queue_of(arguments: Any) -> LateDevice:
    for each in arguments:
        if isinstance(each, _Far):
            return each.queue
        if isinstance(each, (list, tuple)):
            return _queue_of(each)
    raise AssertionError("no tensor of the device among the arguments")
