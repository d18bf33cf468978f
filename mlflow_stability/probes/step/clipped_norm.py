"""Gradient norms around clipping: after the script clipped, and before an engine did."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from functools import partial
from math import isclose, isfinite
from operator import attrgetter, is_not
from types import FrameType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.step.readback import cpu_value, value_on_host
from mlflow_stability.probes.step.step_capture import Clip, StepCapture

# C functions, because these run over all gradients at every step.
_version, _gradient, _is_not_none = attrgetter("_version"), attrgetter("grad"), partial(is_not, None)
MEASURED_EVERY = 10
RELATIVE_TOLERANCE = 1e-5  # allowed difference between a computed norm and a measured one
MAX_FRAMES = 40  # frames above the hook that are searched for an engine
_ENGINE_NORM = "get_global_grad_norm"


class LateClips:
    """Counts the steps in a row whose gradients the script clipped only after the optimizers had used them."""

    def __init__(self) -> None:
        self.steps = 0
        self._is_late = False  # the norm that was taken last was that of gradients that have been used

    def is_late(self, gradients: Sequence[Tensor], stepped: Sequence[Optimizer]) -> bool:
        """Runs when the script takes a norm; `stepped`: optimizers that have used their gradients.

        Return whether these are the gradients that have been used.
        """
        used = {
            id(owner.grad) for optimizer in stepped for group in optimizer.param_groups for owner in group["params"]
        }
        self._is_late = bool(gradients) and all(id(gradient) in used for gradient in gradients)
        return self._is_late

    def clipped(self) -> bool:
        """Count the step of a clipping by that norm; return whether it was late."""
        self.steps = self.steps + 1 if self._is_late else 0
        return self._is_late


class ClippedNorm:
    """Computes the norm after clipping from the norm before it and the limit, without reading all gradients.

    This works only on the host, where an optimizer gets the very tensors that were clipped once, and they were not
    written to since, by torch's own count. Writes through ``.data`` are not counted, and half precision rounds: one
    norm in `MEASURED_EVERY` is measured too, and where it differs, all are measured from then on.
    """

    def __init__(self) -> None:
        self._clipped: tuple[list[int], list[int]] | None = None
        """Identities and versions of the gradients right after clipping; none is kept alive."""
        self._norm: float | None = None
        """The norm that the script clipped by; it may combine several processes."""
        self.times = 0  # number of clippings since the script took a norm
        self.is_on = True
        """Whether norms may be computed: not where steps are skipped for them, nor where a measured norm differed."""
        self._until_measured = 0  # number of norms that may be computed before the next is measured
        self.expected: float | None = None  # the computed value of the norm that is being measured

    def clipped(self, parameters: object, norm: object) -> None:
        self.times += 1
        self._norm = cpu_value(norm) if isinstance(norm, Tensor) and norm.is_cpu else None
        self._clipped = None
        if self.times == 1 and type(parameters) is list:
            gradients = list(filter(_is_not_none, map(_gradient, parameters)))
            if gradients and not gradients[0].is_inference():  # torch counts no versions of these
                self._clipped = list(map(id, gradients)), list(map(_version, gradients))

    def of(self, capture: StepCapture, gradients: Sequence[Tensor]) -> float | None:
        """Return the norm of the gradients that an optimizer is about to use; None where it has to be measured."""
        limit = capture.limits.get("max_norm")
        if self.times != 1 or limit is None or len(capture.limits) > 1 or len(capture.clips) != 1:
            return None
        clip = capture.clips[0]
        if clip.order != 2.0 or clip.scale is not None or self._norm is None or self._norm != clip.norm:
            return None
        if self._clipped is None or not isfinite(self._norm) or self._clipped[0] != list(map(id, gradients)):
            return None
        if self._clipped[1] != list(map(_version, gradients)):
            return None
        computed = self._norm * min(1.0, limit / (self._norm + 1e-6))  # as `clip_grads_with_norm_` does
        self._until_measured -= 1
        if self._until_measured >= 0:
            return computed
        self.expected = computed
        return None

    def compare(self, measured: Tensor | float | None) -> None:
        """Compare a measured norm with the computed one; where they differ, all are measured from now on."""
        expected, self.expected = self.expected, None
        norm = value_on_host(measured) if isinstance(measured, Tensor) else measured
        self.is_on = norm is not None and expected is not None and isclose(norm, expected, rel_tol=RELATIVE_TOLERANCE)
        self._until_measured = MEASURED_EVERY - 1


class EngineNorms:
    """Finds the engine that steps an optimizer, such as DeepSpeed's.

    An engine copies gradients into flat buffers, clips them there and then steps an optimizer of its own; no hook sees
    that. An object on the call stack of the step that has ``get_global_grad_norm`` is asked after its step. The stack
    is searched once for each optimizer; neither engines nor variables of the script are kept alive.
    """

    def __init__(self) -> None:
        self._engines: dict[int, tuple[weakref.ref[Optimizer], weakref.ref[Any] | None]] = {}

    def engine_of(self, optimizer: Optimizer) -> Any:
        """Return the engine that steps this optimizer now, or None."""
        entry = self._engines.get(id(optimizer))
        if entry is None or entry[0]() is not optimizer:
            self._engines = {key: other for key, other in self._engines.items() if other[0]() is not None}
            engine = _engine_on_stack()
            entry = weakref.ref(optimizer), None if engine is None else weakref.ref(engine)
            self._engines[id(optimizer)] = entry
        return None if entry[1] is None else entry[1]()


def take_engine_norm(capture: StepCapture) -> None:
    """Add the norm of the engine to a capture whose step is over, unless the script took one itself."""
    norm = None if capture.clips else _norm_of(capture.engine)
    if norm is not None:
        capture.clips.append(Clip(norm, 2.0, frozenset(capture.gradients), None))
    capture.copied = capture.copied or not capture.clips


def _norm_of(engine: Any) -> Tensor | float | None:
    norm = getattr(engine, _ENGINE_NORM)()
    if isinstance(norm, Tensor):
        return norm.detach().clone() if norm.numel() == 1 and not hasattr(norm, "full_tensor") else None
    return float(norm) if isinstance(norm, int | float) and norm >= 0 else None


def _engine_on_stack() -> Any:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if _may_be_method_of_engine(frame):
            owner = frame.f_locals.get("self")
            if callable(getattr(type(owner), _ENGINE_NORM, None)):
                return owner
        frame = frame.f_back
    return None


def _may_be_method_of_engine(frame: FrameType) -> bool:
    """Return whether this is a method in a module that has a class of engines.

    Checked first, because until Python 3.13 reading a frame's variables keeps them alive until it ends, and writes into
    what the script has from ``locals()``: https://peps.python.org/pep-0667/
    """
    if frame.f_code.co_varnames[:1] != ("self",):
        return False
    kinds = [value for value in list(frame.f_globals.values()) if isinstance(value, type)]
    return any(_ENGINE_NORM in vars(base) for kind in kinds for base in kind.__mro__)
