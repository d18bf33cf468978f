"""Makes a curve small enough to draw without losing a single peak.

In: a curve of any length. Out: at most 400 stretches, each with its first step, its lowest and its highest value, so
that a spike of one step is still there.
"""

from __future__ import annotations

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.vocabulary.result import Sketch

STRETCHES = 400
"""How many a sketch has at most."""


def sketch_of(curve: Curve) -> Sketch:
    """The curve in stretches of equally many points."""
    count = len(curve.values)
    edges = np.unique(np.linspace(0, count, min(count, STRETCHES) + 1).astype(np.int64))[:-1]
    if not len(edges):
        return Sketch(curve.name, (), (), ())
    finite = curve.finite
    low = np.minimum.reduceat(np.where(finite, curve.values, np.inf), edges)
    high = np.maximum.reduceat(np.where(finite, curve.values, -np.inf), edges)
    empty = np.isinf(low)
    low, high = np.where(empty, np.nan, low), np.where(empty, np.nan, high)
    return Sketch(curve.name, tuple(curve.steps[edges].tolist()), tuple(low.tolist()), tuple(high.tolist()))
