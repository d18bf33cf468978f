"""A stand-in for an accelerator: its copies to the host arrive when a test says so, and hold NaN until then.

Its first stream is that of the training. There what was asked for is done at once, and copies to the host take the
values that were there when they were asked for, as in a queue. A copy in another stream takes what it finds when it is
made: what the training has changed meanwhile, or NaN where the memory was given back. It must not begin before the
other stream has waited for what it copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor


class LateDevice:
    """Its streams of copies, which are made in order."""

    def __init__(self) -> None:
        self.training = Stream(self)
        self.current = self.training
        self.beside: list[Stream] = []
        self.waits = 0
        """How often it was waited for."""
        self.clock = 0
        """How often the training wrote to its memory."""
        self.free: int | None = None
        """How many bytes of its memory are left; None: enough."""

    @property
    def waiting(self) -> list[Callable[[], object]]:
        """What the training's stream has yet to copy."""
        return self.training.waiting

    def finish(self, count: int | None = None) -> None:
        """Make the next copies of the training's stream, or all."""
        self.training.finish(count)

    def tensor(self, values: Any) -> Tensor:
        """A tensor on this device."""
        made = torch.as_tensor(values).as_subclass(_Far)
        made.queue = self
        return made

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let torch give out its events and streams."""
        patch.setattr(torch.xpu, "Event", lambda enable_timing=False: _Event(self))
        patch.setattr(torch.xpu, "Stream", self._another_stream)
        patch.setattr(torch.xpu, "stream", self._in_stream)
        patch.setattr(torch.accelerator, "current_stream", lambda device=None: self.current)

    def _another_stream(self, device: object = None) -> Stream:
        self.beside.append(Stream(self))
        return self.beside[-1]

    @contextmanager
    def _in_stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Stream:
    """What one stream has yet to copy."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.waiting: list[Callable[[], object]] = []
        self.done = 0
        self.knows = 0
        """Number of writes of the training that it has waited for."""

    def finish(self, count: int | None = None) -> None:
        """Make the next copies, or all."""
        for _ in range(len(self.waiting) if count is None else count):
            self.waiting.pop(0)()
            self.done += 1

    def wait_stream(self, other: Stream) -> None:
        assert other is self.device.training
        self.knows = self.device.clock


class _Event:
    """Has passed once all copies of its stream are made that were asked for before it."""

    def __init__(self, device: LateDevice) -> None:
        self._stream = device.training
        self._after = 0

    def record(self, stream: Stream) -> None:
        self._stream = stream
        self._after = stream.done + len(stream.waiting)

    def query(self) -> bool:
        return self._stream.done >= self._after

    def synchronize(self) -> None:
        self._stream.device.waits += not self.query()
        self._stream.finish(max(0, self._after - self._stream.done))

    def elapsed_time(self, later: _Event) -> float:
        return 0.0


class _Far(Tensor):
    """Lies on the CPU, and says that it does not."""

    queue: LateDevice
    written = 0
    """When the training wrote it."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("xpu")

    def to(self, *where: Any, **how: Any) -> Tensor:
        types = [item for item in where if isinstance(item, torch.dtype)]
        return super().to(*types) if types else self

    @classmethod
    def __torch_function__(
        cls, called: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(called, "__name__", "")
        assert name not in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"), f"{name} waits for the device"
        if called is Tensor.copy_:
            return _copied(arguments[0], arguments[1])
        if called is torch._foreach_copy_:
            return [_copied(*pair) for pair in zip(*arguments[:2], strict=True)]
        queue = _queue_of(arguments)
        if called is torch.empty_like:
            return _empty(queue, arguments[0], named or {})
        made = super().__torch_function__(called, types, arguments, named or {})
        if isinstance(made, _Far):
            made.queue = queue
        elif isinstance(made, (list, tuple)):
            for item in made:
                if isinstance(item, _Far):
                    item.queue = queue
        return made


def _copied(into: Tensor, source: Tensor) -> Tensor:
    """A copy within the device, made at once; or one to the host, made later."""
    assert isinstance(source, _Far)
    queue, plain = source.queue, source.as_subclass(Tensor).detach()
    if isinstance(into, _Far):
        assert queue.current is queue.training, "only the training's stream may read its tensors"
        into.as_subclass(Tensor).detach().copy_(plain)
        queue.clock += 1
        into.written = queue.clock
        return into
    into.fill_(float("nan") if into.is_floating_point() else 0)
    if queue.current is queue.training:
        plain = plain.clone()
    else:
        assert source.written <= queue.current.knows, "copied in another stream before it was written"
    queue.current.waiting.append(lambda: into.copy_(plain))
    return into


def _empty(queue: LateDevice, like: Tensor, named: dict[str, Any]) -> Tensor:
    plain = torch.empty_like(like.as_subclass(Tensor), **named)
    if named.get("device") == "cpu":
        return plain
    if queue.free is not None and plain.nbytes > queue.free:
        raise torch.OutOfMemoryError("out of memory")
    made = queue.tensor(plain)
    kept_for: list[Stream] = []
    made.record_stream = kept_for.append  # type: ignore[method-assign, assignment]
    weakref.finalize(made, lambda: None if kept_for else plain.fill_(float("nan")))
    return made


def _queue_of(arguments: Any) -> LateDevice:
    result = _some_queue(arguments)
    assert result is not None, "no tensor of the device among the arguments"
    return result


def _some_queue(arguments: Any) -> LateDevice | None:
    for argument in arguments:
        if isinstance(argument, _Far):
            return argument.queue
        if isinstance(argument, (list, tuple)) and (result := _some_queue(argument)) is not None:
            return result
    return None
