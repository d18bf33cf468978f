"""Errors at a place of our choice in the middle of our own work: at an operation of torch, or at a line of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TraceFunction = Callable[[FrameType, str, Any], Any]


class BreaksAt(TorchDispatchMode):
    """`times` operations from number `first` on raise MemoryError; a copy has then written half of its target."""

    def __init__(self, first: int, times: int = 1) -> None:
        super().__init__()
        self._first, self._times = first, times
        self.count = 0

    @property
    def has_broken(self) -> bool:
        return self.count > self._first

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number, self.count = self.count, self.count + 1
        if self._first <= number < self._first + self._times:
            if func is torch.ops.aten.copy_.default:
                self._half(args[0], args[1])
            raise MemoryError(f"no room for operation {number}")
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _half(target: torch.Tensor, source: torch.Tensor) -> None:
        if target.layout is torch.strided and target.dim():
            half = target.shape[0] // 2
            target[:half] = source.expand_as(target)[:half]


@contextmanager
def interrupted_at_line(number: int, files: tuple[str, ...]) -> Iterator[list[str]]:
    """The line that is run as number so-and-so in these files raises instead; gives where that was."""
    count, where = 0, []

    def trace(frame: FrameType, event: str, _: Any) -> TraceFunction | None:
        nonlocal count
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line" and not where:
            count += 1
            if count > number:
                where.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                raise MemoryError(f"at {where[0]}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)
