"""Clips gradients more tightly while a training is eased back in.

In: the gradient norms of healthy steps as they were read, and gradients at the gate. Out: gradients no longer than a
multiple of their usual norm. Promised: nobody waits for the device, and what is no longer than that stays
bit-identical.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from torch import Tensor

from mlflow_stability.recovery.gradient_clip import clip_in_place

REMEMBERED = 100
"""The usual norm is the median of so many."""
LEAST = 20
"""With fewer, nothing is known of what is usual, and nothing is clipped."""


class EasingClip:
    """The usual gradient norm of a training."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._norms: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def largest(self) -> float | None:
        """The norm that is let through; None while too little is known."""
        return self._times * median(self._norms) if len(self._norms) >= LEAST else None

    def take(self, norm: float) -> None:
        """Runs after a healthy step outside of easing, with the norm that the optimizer was given."""
        if math.isfinite(norm):
            self._norms.append(norm)

    def at_gate(self, gradients: Sequence[Tensor], norm: Tensor) -> None:
        """Shorten gradients that are longer; `norm` is theirs, without a loss scale."""
        largest = self.largest
        if largest is not None and largest > 0:
            clip_in_place(gradients, norm, largest)
