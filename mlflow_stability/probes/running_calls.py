"""Tells whether a call of a module is still going on, or was ended by Ctrl-C without a word.

In: a module, by identity. Out: how many calls of it this thread is in the middle of. Promised: nothing of a call is
kept, for its frame would keep alive what it was called with.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from torch.nn import Module

_CALLS: dict[CodeType, str] = {Module._call_impl.__code__: "self"}
"""Functions that call a module, and what they call it."""


def calls_through(code: CodeType, name: str) -> None:
    """Make known one more function that calls a module, which is its local `name`."""
    _CALLS[code] = name


def running_calls(identity: int) -> int:
    """How many calls of this module are going on."""
    found = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _CALLS.get(frame.f_code)
        if name is not None and id(frame.f_locals.get(name)) == identity:
            found += 1
        frame = frame.f_back
    return found
