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
    different = np.unique(values)
    # Arithmetic's own error is a share of the two values, not of the largest of all: that may be 1e30.
    gaps = np.diff(different)
    gaps = gaps[gaps > 1e-12 * np.maximum(np.abs(different[1:]), np.abs(different[:-1]))]
    return float(gaps.min()) if len(gaps) else 0.0


def is_rounding(values: NDArray[np.float64], change: float) -> bool:
    """Whether a change is of a step or two of the log, in a curve most of whose values lie on few of them."""
    return change <= JUMP * quantum_of(values) * (1 + 1e-9)
