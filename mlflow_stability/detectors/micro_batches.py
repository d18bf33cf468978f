"""Make losses of steps comparable that accumulated different numbers of micro-batches.

A recorded loss is the sum of what a step passed to backward. A script that steps at `step % accumulation == 0` has one
micro-batch in its first step, and in one step of each epoch; its loss there is a fraction of the others. Judged is the
mean of a step's micro-batches times the usual number of them, which is right whether the script divides by that
number or not. A number that lasts becomes the usual one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LASTING_STEPS = 8
"""Steps in a row after which another number of micro-batches is the usual one. Of as many first steps, the largest
number is the usual one at once."""


class UsualCount:
    __slots__ = ("_others", "_steps", "usual")

    def __init__(self) -> None:
        self.usual = 0.0
        self._steps = self._others = 0

    def factor(self, count: float) -> float:
        """Return the factor for the loss of a step with this number of micro-batches."""
        self._steps += 1
        if count == self.usual:
            self._others = 0
            return 1.0
        self._others += 1
        if not count > 0:
            return 1.0
        if self._others >= LASTING_STEPS or (self._steps <= LASTING_STEPS and count > self.usual):
            self.usual, self._others = count, 0
        return self.usual / count


def with_usual_count(losses: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale the losses of a whole curve to the usual number of micro-batches around each of them."""
    if not len(counts) or (counts == counts[0]).all() or not (counts > 0).all():
        return losses
    padded = np.pad(counts, LASTING_STEPS, mode="symmetric" if len(counts) >= LASTING_STEPS else "edge")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * LASTING_STEPS + 1), axis=1)
    return losses * usual / counts


def losses_with_counts(names: Sequence[tuple[str, str]]) -> list[tuple[int, int, str]]:
    """Return index, index of the micro-batches, and place of each loss among signals given as (quantity, place)."""
    counts = {place: index for index, (quantity, place) in enumerate(names) if quantity == "micro_batches"}
    return [
        (index, counts[place], place)
        for index, (quantity, place) in enumerate(names)
        if quantity == "loss" and place in counts
    ]
