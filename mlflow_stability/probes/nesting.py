"""Says whether the modules of a model are nested so deeply that hooks on them could hit Python's recursion limit.

In: a model that is about to be called. Out: yes or no. Promised: nothing is called. A module that calls itself again
and again cannot be known here.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch.nn import Module

FRAMES = 8
"""So many frames of Python a level of modules may take: three are torch's, hooks add one, checkpointing four."""
ROOM = 150
"""So many frames are left for what is called inside of the innermost module, by the script, by torch and by us."""


def too_deep(root: Module) -> bool:
    """Whether a call of this model from here could come near the limit."""
    room = sys.getrecursionlimit() - ROOM - depth_of(root) * FRAMES
    frame: FrameType | None = sys._getframe()
    while frame is not None and room >= 0:
        frame = frame.f_back
        room -= 1
    return room < 0


def depth_of(root: Module) -> int:
    """How many modules stand in each other, the root one of them."""
    return max(name.count(".") + 2 if name else 1 for name, _ in Module.named_modules(root))
