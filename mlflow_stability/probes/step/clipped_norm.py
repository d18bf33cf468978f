"""Works out the norm that clipping leaves: from the norm before it and the limit, without a look at all gradients.

In: what the script clipped, the gradients that an optimizer is about to use. Out: their norm, or None where it has to
be measured. Guarantees: only on the host, where an optimizer gets the very tensors that were clipped once, and nobody
has written to them since, by torch's own count. Writes through ``.data`` are not counted, and half precision rounds:
one norm in `MEASURED_EVERY` is measured all the same, and where it is another, all are measured from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isclose, isfinite
from operator import attrgetter, is_not

from torch import Tensor

from mlflow_stability.probes.step.readback import cpu_value, value_on_host
from mlflow_stability.probes.step.step_capture import StepCapture

# Calls of C alone, for what runs over all gradients at every step.
_version, _gradient, _is_there = attrgetter("_version"), attrgetter("grad"), partial(is_not, None)
MEASURED_EVERY = 10
ALIKE = 1e-5
"""How far a measured norm may be from the one that was worked out, as a share of it."""


class ClippedNorm:
    """What the script clipped last."""

    def __init__(self) -> None:
        self._clipped: tuple[list[int], list[int]] | None = None
        """The gradients right after they were clipped, by identity, and the version of each: none is kept alive."""
        self._norm: float | None = None
        """By which it was clipped: a script may have put norms of several processes together."""
        self.times = 0
        """How often the script has clipped since it took a norm; zero again with each norm."""
        self.is_on = True
        """Whether norms may be worked out: not where steps are skipped for them, nor where one was found to differ."""
        self._left = 0
        """So many norms may be worked out before the next is measured."""
        self.expected: float | None = None
        """What was worked out for the one that is being measured."""

    def clipped(self, parameters: object, norm: object) -> None:
        """Runs when the script has clipped the gradients of these parameters, by a norm that it gives."""
        self.times += 1
        self._norm = cpu_value(norm) if isinstance(norm, Tensor) and norm.is_cpu else None
        self._clipped = None
        if self.times == 1 and type(parameters) is list:
            gradients = list(filter(_is_there, map(_gradient, parameters)))
            if gradients and not gradients[0].is_inference():  # of such torch counts no versions
                self._clipped = list(map(id, gradients)), list(map(_version, gradients))

    def of(self, capture: StepCapture, gradients: Sequence[Tensor]) -> float | None:
        """The norm of the gradients that an optimizer is about to use; None where it has to be measured."""
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
        worked_out = self._norm * min(1.0, limit / (self._norm + 1e-6))  # as `clip_grads_with_norm_` does
        self._left -= 1
        if self._left >= 0:
            return worked_out
        self.expected = worked_out
        return None

    def compare(self, measured: Tensor | float | None) -> None:
        """Runs when a norm was measured for which one is expected: where it is another, all are measured."""
        expected, self.expected = self.expected, None
        found = value_on_host(measured) if isinstance(measured, Tensor) else measured
        self.is_on = found is not None and expected is not None and isclose(found, expected, rel_tol=ALIKE)
        self._left = MEASURED_EVERY - 1
