"""Says where a falling curve would end, if it goes on as it did.

In: a curve as levels. Out: the asymptote of the exponential or power law that fits it best; None unless the fit holds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FEWEST = 12
"""Fewer levels are not fitted."""
GOOD_FIT = 0.98
"""The share of the variation that the fit explains at least."""
FURTHEST = 0.5
"""An asymptote below this share of the lowest level is a guess, not a finding."""
RATES = np.geomspace(0.02, 0.6, 16)
"""Time constants that are tried, as shares of the run."""
POWERS = np.linspace(0.2, 1.5, 14)
"""Exponents that are tried."""


def fitted_end(steps: NDArray[np.int64], levels: NDArray[np.float64]) -> float | None:
    """The level that the decay approaches."""
    if len(levels) < FEWEST or steps[-1] <= steps[0] or not np.isfinite(levels).all():
        return None
    if np.abs(levels).max() > 1e100:
        return None
    t = (steps - steps[0]) / (steps[-1] - steps[0])
    shapes = [np.exp(-t / rate) for rate in RATES] + [(1 + len(t) * t) ** -power for power in POWERS]
    centered = levels - levels.mean()
    total = float(centered @ centered)
    if total <= 0:
        return None
    best, end = GOOD_FIT, None
    for shape in shapes:
        around = shape - shape.mean()
        slope = float(around @ centered) / float(around @ around)
        explained = 1 - float(((centered - slope * around) ** 2).sum()) / total
        asymptote = float(levels.mean() - slope * shape.mean())
        if slope > 0 and explained > best:
            best, end = explained, asymptote
    lowest = float(np.sort(levels)[: max(1, len(levels) // 10)].mean())
    return end if end is not None and FURTHEST * lowest <= end <= lowest * 1.02 else None
