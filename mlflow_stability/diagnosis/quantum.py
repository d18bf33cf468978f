"""Says in which steps a log counts: a loss that was rounded to four decimals moves by 0.0001 or not at all.

In: the finite values of a curve. Out: their smallest difference that is none of arithmetic; 0 for few values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FEWEST = 40
"""Of fewer values nobody can tell."""
JUMP = 2.5
"""A change of less than so many of the log's own steps is rounding, and no event."""


def quantum_of(values: NDArray[np.float64]) -> float:
    """The smallest difference between two values of the curve."""
    if len(values) < FEWEST:
        return 0.0
    gaps = np.diff(np.unique(values))
    gaps = gaps[gaps > 1e-12 * float(np.abs(values).max())]
    return float(gaps.min()) if len(gaps) else 0.0


def is_rounding(values: NDArray[np.float64], change: float) -> bool:
    """Whether a change is of a step or two of the log, in a curve most of whose values lie on few of them."""
    return change <= JUMP * quantum_of(values) * (1 + 1e-9)
