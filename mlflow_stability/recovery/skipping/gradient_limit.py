"""Knows from which norm on a gradient is absurd: a corrupted batch, not a step that anybody wants taken.

In: gradient norm and loss of every step as it was read, and whether the step was skipped. Out: the largest norm that is
let through. Guarantees: it is far above everything the training itself has shown since its first step or the last
rollback, for what it has survived once is no reason to skip a step; when absurd norms keep coming, in a row or now and
then, they are let through: then they are the training's own, and not for us to judge. A norm of exactly zero (no
reward, no violated margin) says nothing of how large the others are.

A batch that is corrupted shows in its loss, too. Where the loss is no larger than the training has seen, a gradient
must be ten times as absurd: one large norm alone is common in healthy trainings, and most survive it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

REMEMBERED = 256
"""So many of the last norms are remembered."""
LEAST = 50
"""With fewer norms nothing is known of the training's own, and nothing is limited."""
OF_THE_LARGEST = 10.0
"""A norm is absurd only above so many times the largest that was ever taken, so that heavy tails are let through, and
the one hard sample of a training that has nearly learnt the others. So is a loss."""
WITHOUT_LOSS = 10.0
"""By how much both limits are higher where the loss is not absurd."""
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
        self._largest = 0.0
        """The largest norm of a step that was taken, ..."""
        self._largest_loss = 0.0
        """... and the largest loss, whatever its sign."""
        self._usual = math.inf
        """What is let through, absurd norms aside."""
        self.largest: float | None = None
        """The norm that is let through where the loss is absurd; None: any."""
        self._absurd: deque[float] = deque(maxlen=MOST_SKIPPED)
        """The last norms above it."""
        self._since = 0
        """How many steps ago the last of them was."""

    def largest_for(self, losses: Sequence[Tensor | float]) -> float | Tensor | None:
        """The norm that is let through in a step with these losses, without waiting for their device; None: any."""
        largest = self.largest
        if largest is None:
            return None
        far = next((each for each in losses if isinstance(each, Tensor)), None)
        if far is None:
            absurd = OF_THE_LARGEST * self._largest_loss
            return largest if any(abs(float(loss)) > absurd for loss in losses) else WITHOUT_LOSS * largest
        sizes = torch.stack([torch.as_tensor(each).detach().to(far).abs() for each in losses])
        limits = sizes.new_tensor([largest, WITHOUT_LOSS * largest])
        is_absurd: Tensor = torch.gt(sizes.max(), OF_THE_LARGEST * self._largest_loss)
        return torch.where(is_absurd, limits[0], limits[1])

    def step(self, norm: float, *, skipped: bool, loss: float = math.nan) -> None:
        """Take note of a step."""
        is_absurd = abs(loss) > OF_THE_LARGEST * self._largest_loss
        usual = self._usual if is_absurd else WITHOUT_LOSS * self._usual
        if not skipped and math.isfinite(loss):
            self._largest_loss = max(self._largest_loss, abs(loss))
        if norm == 0 or not math.isfinite(norm):
            return
        if norm > usual:
            self._absurd.append(norm)
            self._since = 0
        elif self._absurd:
            self._since += 1
            if self._since >= FORGOTTEN_AFTER:
                self._absurd.clear()
        if not skipped:
            self._largest = max(self._largest, norm)
            self._norms.append(norm)
            insort(self._by_size, norm)
            if len(self._norms) > REMEMBERED:
                del self._by_size[bisect_left(self._by_size, self._norms.popleft())]
        norms = self._by_size
        if self._times is None or len(norms) < LEAST:
            return
        median = (norms[(len(norms) - 1) // 2] + norms[len(norms) // 2]) / 2
        self._usual = self.largest = max(self._times * median, OF_THE_LARGEST * self._largest)
        if len(self._absurd) == MOST_SKIPPED:
            self.largest = max(self._usual, OF_THE_LARGEST * min(self._absurd))

    def forget(self) -> None:
        """The training was rolled back: its norms are learnt anew."""
        self._norms.clear()
        self._by_size.clear()
        self._absurd.clear()
        self._usual, self._largest, self._largest_loss, self._since = math.inf, 0.0, 0.0, 0
        self.largest = None
