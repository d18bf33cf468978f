"""Losses of steps that accumulated fewer micro-batches than usual, made comparable.

A recorded loss is the sum of what a step passed to backward. A script that steps at `step % accumulation == 0` has one
micro-batch in its first step, and in one step of each epoch; its loss there is a fraction of the others. Judged is the
mean of a step's micro-batches times the usual number of them, which is right whether the script divides by that number
or not. A number that lasts is the new usual one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LASTING = 8
"""Number of steps in a row from which on another number of micro-batches is the usual one; the largest number counts in
as many first steps."""


class UsualCount:
    """The usual number of micro-batches of a training."""

    __slots__ = ("_others", "_seen", "usual")

    def __init__(self) -> None:
        self.usual = 0.0
        self._seen = self._others = 0

    def factor(self, count: float) -> float:
        """By how much the loss of a step with so many is multiplied."""
        if count == self.usual:
            self._others = 0
            self._seen += 1
            return 1.0
        self._seen += 1
        self._others += 1
        if not count > 0:
            return 1.0
        if self._others >= LASTING or (self._seen <= LASTING and count > self.usual):
            self.usual, self._others = count, 0
        return self.usual / count


def with_usual_count(losses: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The losses of a whole curve, each with its number of micro-batches; usual is the number of its neighbours."""
    if not len(counts) or (counts == counts[0]).all() or not (counts > 0).all():
        return losses
    padded = np.pad(counts, LASTING, mode="symmetric" if len(counts) >= LASTING else "edge")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * LASTING + 1), axis=1)
    return losses * usual / counts


def pairs_of(names: Sequence[tuple[str, str]]) -> list[tuple[int, int, str]]:
    """For each loss among signals, given as quantity and place: its index, that of its micro-batches, its place."""
    counts = {place: at for at, (quantity, place) in enumerate(names) if quantity == "micro_batches"}
    return [
        (at, counts[place], place)
        for at, (quantity, place) in enumerate(names)
        if quantity == "loss" and place in counts
    ]
