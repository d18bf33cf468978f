"""Says what a training loss did since one of the validations.

In: both curves and the point. Out: the training loss around that validation and at the end, how far it fell, and how
far chance moves that. Guarantees: where one curve counts epochs and the other steps, both are read over the same run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.curves.levels import noise_of, scaled

FEWEST = 4
"""Of fewer training losses nothing is said."""
OTHER_COUNT = 5.0
"""A curve of consecutive numbers that ends so many times earlier than the other one counts something else: epochs."""


@dataclass(frozen=True, slots=True)
class TrainingSince:
    """The training loss since a validation."""

    before: float
    """Its median around that validation."""
    now: float
    """And over as many points up to the last validation."""
    fall: float
    """In nats; where the loss reaches zero or below, in units of its own spread."""
    error: float
    """How far noise moves that fall, as a standard deviation."""


def training_since(training: Curve, validation: Curve, point: int) -> TrainingSince | None:
    """Since this finite point of the validation loss; None where there are too few training losses."""
    values, steps = training.values[training.finite], training.steps[training.finite]
    if len(values) < FEWEST:
        return None
    x, _ = scaled(values)
    reach = max(1, len(x) // 10)
    validated = validation.steps[validation.finite]
    there = int(np.searchsorted(steps, _own(training, validation, int(validated[point]))))
    last = int(np.searchsorted(steps, _own(training, validation, int(validated[-1])), side="right"))
    first, low, high = max(0, there - reach), max(0, last - 2 * reach), max(last, 1)
    early, late = slice(min(first, len(x) - 1), there + reach), slice(low, high)
    error = noise_of(x) * 1.25 * math.sqrt(1 / len(x[early]) + 1 / len(x[late]))
    fall = float(np.median(x[early]) - np.median(x[late]))
    return TrainingSince(float(np.median(values[early])), float(np.median(values[late])), fall, error)


def _own(training: Curve, validation: Curve, step: int) -> float:
    """Where in the training curve this step of the validation curve is."""
    spans = [float(each.steps[-1] - each.steps[0]) for each in (training, validation)]
    shorter = (training, validation)[spans[1] < spans[0]]
    if shorter.distance > 1 or min(spans) <= 0 or max(spans) < OTHER_COUNT * min(spans):
        return float(step)
    share = (step - float(validation.steps[0])) / spans[1]
    return float(training.steps[0]) + share * spans[0]
