"""Test whether a curve that fell has turned and rises, and what the training loss did since then.

The statistic is the share of the residuals of the best falling curve that a curve which falls and then rises explains.
It assumes no shape of fall or rise, and outliers are clipped.

Reference: Barlow, Bartholomew, Bremner and Brunk 1972, Statistical inference under order restrictions (the test that
they call E-bar squared, here for a turn at a place that is not known).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve
from mlflow_stability.curves.levels import level_noise, to_judged_scale

MAX_MEDIANS = 40
"""A longer curve is reduced to this number of medians, which averages noise, also correlated noise, away."""
MEDIAN_REACH, MAX_DEVIATIONS = 2, 2.0
"""A value is clipped to this many deviations from the median of itself and this number of neighbours on each side."""
MAX_VALUE = 1e100  # larger values have no squares
SHARE_AT_EIGHT, PER_E_FOLD, MIN_SHARE = 0.93, 0.17, 0.15
"""Share that 2 % of curves without a turn reach: for eight values, its fall for each e-fold more, and its minimum.

Measured on 10,000 simulated validation curves of 6 to 1,000 values (exponential, power-law and stepped decays, and flat
ones; Gaussian, skewed, heavy-tailed and correlated noise of 0.002 to 0.15 nats):
tests/curves/test_turning_point.py.
"""


def turn_share(x: NDArray[np.float64]) -> float:
    """Return the share explained by a turn: 0 for a curve that never rises, 1 for one that turns without noise."""
    x = x / max(1.0, float(np.abs(x).max(initial=0)) / MAX_VALUE)  # the share stays the same
    size = max(1, len(x) // MAX_MEDIANS)
    medians = np.median(x[: len(x) // size * size].reshape(-1, size), axis=1)
    beside = [medians[max(0, at - MEDIAN_REACH) : at + MEDIAN_REACH + 1] for at in range(len(medians))]
    usual, reach = np.array([np.median(values) for values in beside]), MAX_DEVIATIONS * level_noise(medians)
    y = np.clip(medians, usual - reach, usual + reach)
    falling = _isotonic_residuals(-y)
    both = falling[:-1] + _isotonic_residuals(-y[::-1])[::-1][1:]
    never, best = float(falling[-1]), float(min(both.min(initial=np.inf), falling[-1]))
    return 1 - best / never if never > 1e-9 * len(y) else 0.0


def chance_turn_share(values: int) -> float:
    """Return the share that noise alone rarely reaches in a curve of this number of values."""
    return max(MIN_SHARE, min(SHARE_AT_EIGHT, SHARE_AT_EIGHT - PER_E_FOLD * math.log(values / 8)))


def _isotonic_residuals(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each prefix of a curve the squared residuals of the best non-falling fit: pool adjacent violators."""
    means: list[float] = []
    counts: list[int] = []
    squares: list[float] = []
    sums = []
    for value in y.tolist():
        mean, count, square = value, 1, 0.0
        while means and means[-1] >= mean:
            other, weight = means.pop(), counts.pop()
            square += squares.pop() + (mean - other) ** 2 * count * weight / (count + weight)
            mean, count = (mean * count + other * weight) / (count + weight), count + weight
        means.append(mean)
        counts.append(count)
        squares.append(square)
        sums.append(math.fsum(squares))
    return np.array(sums)


MIN_TRAINING_LOSSES = 4  # fewer training losses are not described
EPOCHS_RATIO = 5.0  # a curve of consecutive steps that is this many times shorter than the other one counts epochs


@dataclass(frozen=True, slots=True)
class TrainingSince:
    before: float  # median around that validation
    now: float  # median over as many points up to the last validation
    fall: float  # in nats; where the loss reaches zero or below, in units of its own spread
    error: float  # standard error of the fall


def training_since(training: Curve, validation: Curve, point: int) -> TrainingSince | None:
    """Return the change since this finite point of the validation loss; None for too few training losses."""
    values, steps = training.values[training.finite], training.steps[training.finite]
    if len(values) < MIN_TRAINING_LOSSES:
        return None
    x, _ = to_judged_scale(values)
    reach = max(1, len(x) // 10)
    validated = validation.steps[validation.finite]
    there = int(np.searchsorted(steps, _training_step(training, validation, int(validated[point]))))
    last = int(np.searchsorted(steps, _training_step(training, validation, int(validated[-1])), side="right"))
    first, low, high = max(0, there - reach), max(0, last - 2 * reach), max(last, 1)
    early, late = slice(min(first, len(x) - 1), there + reach), slice(low, high)
    error = level_noise(x) * 1.25 * math.sqrt(1 / len(x[early]) + 1 / len(x[late]))
    fall = float(np.median(x[early]) - np.median(x[late]))
    return TrainingSince(float(np.median(values[early])), float(np.median(values[late])), fall, error)


def _training_step(training: Curve, validation: Curve, step: int) -> float:
    spans = [float(curve.steps[-1] - curve.steps[0]) for curve in (training, validation)]
    shorter = (training, validation)[spans[1] < spans[0]]
    if shorter.distance > 1 or min(spans) <= 0 or max(spans) < EPOCHS_RATIO * min(spans):
        return float(step)
    share = (step - float(validation.steps[0])) / spans[1]
    return float(training.steps[0]) + share * spans[0]
