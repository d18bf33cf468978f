"""Notices that the thread that trains has ended, while its process lives on.

Ray Train and others train in a thread of a worker process, and kill the worker as soon as that thread has ended: no
exit function runs there. Guarantees: the call comes in the thread itself, before `is_alive()` says that it has ended.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

OnEnd = Callable[[BaseException | None], None]


class ThreadEnd:
    """Calls back when a thread ends in which `watch` was called; the main thread's end is that of the process."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self.ident = 0
        """The thread that is watched; 0: none is."""
        self._local = threading.local()

    def watch(self) -> None:
        """Watch the thread that calls; two hundred nanoseconds where it is watched already."""
        ident = threading.get_ident()
        if ident == self.ident:
            return
        self.ident = ident
        if ident != threading.main_thread().ident:
            self._local.last = _Last(ident, _outermost_frame(sys._getframe()), self._ended)

    def _ended(self, error: BaseException | None) -> None:
        self.ident = 0
        self._on_end(error)


class _Last:
    """What a thread holds until it lets go of everything."""

    def __init__(self, ident: int, frame: FrameType, on_end: OnEnd) -> None:
        self._ident = ident
        self._frame = frame
        self._on_end = on_end

    def __del__(self) -> None:
        if threading.get_ident() == self._ident:  # else the watch was taken off, and the thread lives on
            self._on_end(_escaped_into(self._frame))


def _outermost_frame(frame: FrameType) -> FrameType:
    """The first function of the thread that is not Python's own way of starting one."""
    while frame.f_back is not None and frame.f_back.f_globals.get("__name__") != threading.__name__:
        frame = frame.f_back
    return frame


def _escaped_into(frame: FrameType) -> BaseException | None:
    """The exception that reached this frame from what it called, and is kept by somebody who will tell of it."""
    tracebacks = [
        each
        for each in gc.get_referrers(frame)
        if isinstance(each, TracebackType) and each.tb_frame is frame and each.tb_next is not None
    ]
    for referrer in gc.get_referrers(*tracebacks) if tracebacks else ():
        if isinstance(referrer, BaseException) and any(referrer.__traceback__ is each for each in tracebacks):
            return _told(referrer)
    return None


def _told(error: BaseException) -> BaseException:
    """The exception that says something: frameworks wrap what a training raises in exceptions without words."""
    while not str(error) and error.__cause__ is not None:
        error = error.__cause__
    return error
