"""Noise such as training curves have, of a known size.

In: a curve without noise, a kind of noise, its σ. Out: the same curve as it would have been logged. σ is the robust
standard deviation of one point in nats, that is, relative to the level of the curve.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Floats = NDArray[np.float64]
NOISES = ("gaussian", "multiplicative", "heavy_tailed", "correlated", "skewed", "falling", "quantised")
"""Of constant size; of the size of the level; Student's t with 3 degrees; AR(0.9); gamma; of the size of what is left
to learn; rounded to 2-4 decimals."""
MEMORY = 0.9
"""How much of one point's noise the next one has where noise is correlated."""
T3_SIGMA = 1.134
"""The robust standard deviation of Student's t with 3 degrees of freedom."""


def unit(kind: str, count: int, rng: np.random.Generator) -> Floats:
    """Noise with a robust standard deviation of 1."""
    if kind == "heavy_tailed":
        return np.clip(rng.standard_t(3, count) / T3_SIGMA, -12, 12)
    if kind == "skewed":
        return np.asarray((rng.gamma(4.0, 1.0, count) - 4.0) / 2.0)
    if kind == "correlated":
        fresh = rng.standard_normal(count) * np.sqrt(1 - MEMORY**2)
        fresh[0] = rng.standard_normal()
        return np.asarray(lfilter([1.0], [1.0, -MEMORY], fresh))
    return rng.standard_normal(count)


def noisy(clean: Floats, kind: str, sigma: float, rng: np.random.Generator) -> Floats:
    """The curve with noise; what is positive stays so."""
    if not len(clean):
        return clean
    drawn = unit(kind, len(clean), rng)
    if clean.min() <= 0:  # such a loss has no logarithm: the noise is a share of what was learnt
        return clean + sigma * max(float(np.ptp(clean)), 1e-6) * drawn
    if kind == "gaussian":
        return np.maximum(clean + sigma * float(np.median(clean)) * drawn, 0.02 * clean)
    if kind == "falling":
        left = clean - float(clean.min())
        return np.maximum(clean + sigma * (left + 0.2 * clean) * drawn, 0.02 * clean)
    values = clean * np.exp(sigma * drawn)
    if kind == "quantised":
        level = float(np.median(clean))
        values = np.maximum(np.round(values, digits_for(level, sigma, rng)), 0.0)
    return values


def digits_for(level: float, sigma: float, rng: np.random.Generator) -> int:
    """2-4 decimals, and one more where that would leave nothing of a small loss."""
    digits = int(rng.integers(2, 5))
    while level < 20 * 10.0**-digits and digits < 8:
        digits += 1
    return digits


def sigma_at(values: Floats, clean: Floats, low: int, high: int) -> float:
    """The robust standard deviation of single points between two places, in nats where there are nats."""
    values, clean = values[low:high], clean[low:high]
    positive = bool(len(clean)) and clean.min() > 0 and values.min() > 0
    off = np.log(values / clean) if positive else (values - clean) / max(float(np.ptp(clean)), 1e-6)
    spread = 1.4826 * float(np.median(np.abs(off - np.median(off)))) if len(off) >= 4 else 0.0
    return max(spread, 1e-3)
