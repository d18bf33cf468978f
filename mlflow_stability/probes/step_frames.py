"""Tells a top-level optimizer step from one inside another: ``super().step()``, SAM, an optimizer in a closure.

The call stack is asked, not a counter: a step that ends in an exception, or a notebook cell that is interrupted, runs
no hook at its end, and a counter would then call every later step nested.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from mlflow_stability.probes import torch_api

# Every step that torch hooks runs inside a frame of this one function.
_STEP_CODE: CodeType = torch_api.profile_hook_step(lambda: None).__code__


def is_nested_step() -> bool:
    """Whether the hook that is running belongs to a step inside another step."""
    frame: FrameType | None = sys._getframe(1)
    steps = 0
    while frame is not None:
        if frame.f_code is _STEP_CODE:
            steps += 1
            if steps == 2:
                return True
        frame = frame.f_back
    return False
