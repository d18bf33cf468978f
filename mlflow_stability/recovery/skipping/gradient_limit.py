"""Knows from which norm on a gradient is absurd: a corrupted batch, not a step that anybody wants taken.

In: the gradient norm of every step as it was read, and whether the step was skipped. Out: the largest norm that is let
through. Guarantees: it is far above everything the training itself has shown lately, and when absurd norms keep coming,
they are let through: then they are the training's new level, and not for us to judge.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

REMEMBERED = 256
"""So many of the last norms are remembered."""
LEAST = 50
"""With fewer norms nothing is known of the training's own, and nothing is limited."""
OF_THE_LARGEST = 10.0
"""A norm is absurd only above so many times the largest of those remembered, so that heavy tails are let through."""
MOST_IN_A_ROW = 3
"""So many absurd gradients in a row are skipped, and the next is taken."""


class GradientLimit:
    """The gradient norms of one training."""

    def __init__(self, times: float | None) -> None:
        self._times = times
        self._norms: deque[float] = deque()
        self._by_size: list[float] = []
        """The same, smallest first: to sort them anew at each step would take longer than all else here."""
        self._row = 0

    @property
    def largest(self) -> float | None:
        """The norm that is let through; None: any."""
        norms = self._by_size
        if self._times is None or len(norms) < LEAST or self._row >= MOST_IN_A_ROW:
            return None
        median = (norms[(len(norms) - 1) // 2] + norms[len(norms) // 2]) / 2
        return max(self._times * median, OF_THE_LARGEST * norms[-1])

    def step(self, norm: float, *, skipped: bool) -> None:
        """Take note of a step."""
        if not math.isfinite(norm):
            return
        if skipped:
            self._row += 1
        else:
            self._row = 0
            self._norms.append(norm)
            insort(self._by_size, norm)
            if len(self._norms) > REMEMBERED:
                del self._by_size[bisect_left(self._by_size, self._norms.popleft())]

    def forget(self) -> None:
        """The training was rolled back: its norms are learnt anew."""
        self._norms.clear()
        self._by_size.clear()
        self._row = 0
