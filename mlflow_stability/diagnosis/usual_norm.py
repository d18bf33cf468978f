"""What the gradient norm usually is: one number for all that is said about it.

In: the surroundings of an episode, or norms before it. Out: the middle of those that are not just before it, with their
spread. Promised: sentences of one report that call a norm usual mean the same number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.surroundings import Surroundings

LOOKED_AT = 200
"""So many points before an episode are looked at."""
RECENT = 10
"""So many points before the first bad one count as what came just before, and not as usual."""


def usual_norm(around: Surroundings) -> float | None:
    """The usual one; None where there was none."""
    norms = norms_before(around)
    return usual_of(split(norms)[1])[0] if len(norms) else None


def norms_before(around: Surroundings) -> NDArray[np.float64]:
    """The gradient norms before an episode, without those that are zero."""
    norms = np.zeros(0) if around.norm is None else around.before(around.norm, LOOKED_AT)
    return norms[norms > 0]


def split(norms: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Those just before, and those that tell what is usual."""
    return norms[-RECENT:], norms[:-RECENT] if len(norms) > 2 * RECENT else norms


def usual_of(norms: NDArray[np.float64]) -> tuple[float, float]:
    """The middle, and the spread of their logarithms."""
    logs = np.log(norms)
    middle = float(np.median(logs))
    return float(np.exp(middle)), 1.4826 * float(np.median(np.abs(logs - middle))) + 0.02
