"""What a loss ended at: one number for tables, comparisons and the demo, which a single lucky batch does not make."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PART = 20
"""A final loss is that of the last so-manieth of the points."""
FEWEST = 3
"""Points that such a part has at least."""


def last_part(values: NDArray[np.float64]) -> int:
    """How many points that are."""
    return min(len(values), max(FEWEST, len(values) // PART))


def final_loss(values: NDArray[np.float64]) -> float | None:
    """Their median; what is not finite where the very last one is not; None where there is no point."""
    if not len(values):
        return None
    last = values[-last_part(values) :]
    return float(np.median(last)) if np.isfinite(last[-1]) else float(last[-1])
