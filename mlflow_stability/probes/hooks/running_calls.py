"""Whether a call of a watched module is still running, or was ended by Ctrl-C without notice.

In: a module, by identity. Out: how many calls of it run in this thread; for one forward pass, yes or no from any
depth of the call. Guarantees: nothing of a call is kept alive, neither its frame nor its inputs and outputs.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch.nn import Module

from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS


def running_calls(identity: int) -> int:
    """How many calls of this module are going on."""
    found = 0
    code = MODULE_CALLS.code
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code and id(frame.f_locals["self"]) == identity:
            found += 1
        frame = frame.f_back
    return found


class RunningPass:
    """Whether the call of a module that is going on now still is."""

    __slots__ = ("_frame",)

    def __init__(self, root: Module) -> None:
        code = MODULE_CALLS.code
        frame: FrameType | None = sys._getframe()
        while frame is not None and not (frame.f_code is code and frame.f_locals["self"] is root):
            frame = frame.f_back
        self._frame = frame

    def __call__(self) -> bool:
        """Whether it is."""
        frame: FrameType | None = sys._getframe() if self._frame is not None else None
        while frame is not None:
            if frame is self._frame:
                return True
            frame = frame.f_back
        return False

    def over(self) -> None:
        """It is not."""
        self._frame = None
