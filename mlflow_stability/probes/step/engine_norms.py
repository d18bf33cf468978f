"""Finds the engine that steps an optimizer, and asks it for the gradient norm before it clipped.

DeepSpeed and its like copy gradients into flat buffers, clip them there and then step an optimizer of their own; no
hook sees that. What offers ``get_global_grad_norm`` and is on the call stack of the step is asked once its step is
over. Guarantees: the stack is looked at once for each optimizer; neither engines nor variables of the script are kept
alive, and a dictionary that the script got from ``locals()`` stays as it is.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.step.step_capture import Clip, StepCapture

DEEPEST = 40
"""So many frames above the hook are looked at."""
_NAME = "get_global_grad_norm"


class EngineNorms:
    """The engines of the optimizers that were seen."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Optimizer], weakref.ref[Any] | None]] = {}

    def engine_of(self, optimizer: Optimizer) -> Any:
        """The engine that steps this optimizer now; None where there is none."""
        known = self._known.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self._known = {key: each for key, each in self._known.items() if each[0]() is not None}
            engine = _engine_on_stack()
            known = weakref.ref(optimizer), None if engine is None else weakref.ref(engine)
            self._known[id(optimizer)] = known
        return None if known[1] is None else known[1]()


def take_engine_norm(capture: StepCapture) -> None:
    """Have a capture whose step is over know the norm that its engine took, unless the script took one itself."""
    norm = None if capture.clips else norm_before_clipping(capture.engine)
    if norm is not None:
        capture.clips.append(Clip(norm, 2.0, frozenset(capture.gradients), None))
    capture.copied = capture.copied or not capture.clips


def norm_before_clipping(engine: Any) -> Tensor | float | None:
    """What it says of the step that it has made; None where it does not say."""
    norm = getattr(engine, _NAME)()
    if isinstance(norm, Tensor):
        return norm.detach().clone() if norm.numel() == 1 and not hasattr(norm, "full_tensor") else None
    return float(norm) if isinstance(norm, int | float) and norm >= 0 else None


def _engine_on_stack() -> Any:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(DEEPEST):
        if frame is None:
            return None
        if _may_be_an_engines(frame):
            owner = frame.f_locals.get("self")
            if callable(getattr(type(owner), _NAME, None)):
                return owner
        frame = frame.f_back
    return None


def _may_be_an_engines(frame: FrameType) -> bool:
    """Whether this is a method in a module that has a class of engines.

    Asked first, for until Python 3.13 reading a frame's variables keeps them alive until it ends, and writes into what
    the script has from ``locals()``: https://peps.python.org/pep-0667/
    """
    if frame.f_code.co_varnames[:1] != ("self",):
        return False
    there = list(frame.f_globals.values())
    return any(isinstance(each, type) and any(_NAME in vars(base) for base in each.__mro__) for each in there)
