"""Keeps a series small enough to draw while it is still being measured.

In: points, in order. Out: a `Curve`. Promised: at most `MOST_STRETCHES` stretches are kept however many points come,
so the memory of a million steps is that of a few thousand; no extreme and no non-finite value is lost.
"""

from __future__ import annotations

from array import array

import numpy as np

from mlflow_stability.figures.curve import Curve, condensed, curve_of_values, joined
from mlflow_stability.vocabulary.signal import Signal

MOST_STRETCHES = 3000
_AT_ONCE = 1024
_WIDEST = 1 << 60


class CurveSketch:
    """One signal as far as it has come."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self._width = 1
        self._known: Curve | None = None
        self._clear()

    def add(self, step: int, value: float, attempt: int) -> None:
        """Take a point in."""
        self._steps.append(step)
        self._values.append(value)
        self._attempts.append(attempt)
        if len(self._steps) >= _AT_ONCE:
            self._settle()

    def curve(self) -> Curve:
        """What is known so far."""
        self._settle()
        assert self._known is not None
        return self._known

    def _settle(self) -> None:
        new = curve_of_values(
            self.signal,
            np.array(self._steps, np.int64),
            np.array(self._values, np.float64),
            np.array(self._attempts, np.int64),
        )
        self._clear()
        curve = condensed(joined([new] if self._known is None else [self._known, new]), self._width)
        while len(curve) > MOST_STRETCHES and self._width < _WIDEST:
            self._width *= 2
            curve = condensed(curve, self._width)
        self._known = curve

    def _clear(self) -> None:
        self._steps, self._attempts, self._values = array("q"), array("q"), array("d")
