"""Knows from which norm on a gradient is absurd: a corrupted batch, not a step that anybody wants taken.

In: the gradient norm of every step as it was read, and whether the step was skipped. Out: the largest norm that is let
through. Guarantees: it is far above everything the training itself has shown lately, and when absurd norms keep coming,
in a row or now and then, they are let through: then they are the training's own, and not for us to judge. A norm of
exactly zero (no reward, no violated margin) says nothing of how large the others are.
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
MOST_SKIPPED = 3
"""So many absurd gradients are skipped, and the next of their size is taken."""
FORGOTTEN_AFTER = 1000
"""Absurd gradients are forgotten after so many steps without one. A rare task or reward comes more often; a batch that
is corrupted less often is always skipped."""


class GradientLimit:
    """The gradient norms of one training."""

    def __init__(self, times: float | None) -> None:
        self._times = times
        self._norms: deque[float] = deque()
        self._by_size: list[float] = []
        """The same, smallest first: to sort them anew at each step would take longer than all else here."""
        self._usual = math.inf
        """What was let through at the last step, absurd norms aside."""
        self._absurd: deque[float] = deque(maxlen=MOST_SKIPPED)
        """The last norms above it."""
        self._since = 0
        """How many steps ago the last of them was."""

    @property
    def largest(self) -> float | None:
        """The norm that is let through; None: any."""
        norms = self._by_size
        if self._times is None or len(norms) < LEAST:
            return None
        median = (norms[(len(norms) - 1) // 2] + norms[len(norms) // 2]) / 2
        self._usual = usual = max(self._times * median, OF_THE_LARGEST * norms[-1])
        if len(self._absurd) < MOST_SKIPPED:
            return usual
        return max(usual, OF_THE_LARGEST * min(self._absurd))

    def step(self, norm: float, *, skipped: bool) -> None:
        """Take note of a step."""
        if norm == 0 or not math.isfinite(norm):
            return
        if norm > self._usual:
            self._absurd.append(norm)
            self._since = 0
        elif self._absurd:
            self._since += 1
            if self._since >= FORGOTTEN_AFTER:
                self._absurd.clear()
        if not skipped:
            self._norms.append(norm)
            insort(self._by_size, norm)
            if len(self._norms) > REMEMBERED:
                del self._by_size[bisect_left(self._by_size, self._norms.popleft())]

    def forget(self) -> None:
        """The training was rolled back: its norms are learnt anew."""
        self._norms.clear()
        self._by_size.clear()
        self._absurd.clear()
        self._usual, self._since = math.inf, 0
