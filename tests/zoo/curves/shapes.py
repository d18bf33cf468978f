"""How losses fall when all goes well, without noise.

In: times from 0 to 1, and the levels at which a curve starts and ends. Out: the curve. Each shape is drawn with
parameters of its own, so that no two are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shape = Callable[[Floats, np.random.Generator], Floats]
"""Gives the share of the way that is left: 1 at the start, about 0 at the end."""


def exponential(t: Floats, rng: np.random.Generator) -> Floats:
    return np.exp(-t / float(np.exp(rng.uniform(math.log(0.03), math.log(0.4)))))


def power_law(t: Floats, rng: np.random.Generator) -> Floats:
    fall = (1 + t * float(np.exp(rng.uniform(math.log(10), math.log(1000))))) ** -rng.uniform(0.25, 0.8)
    return np.asarray(fall)


def stepped(t: Floats, rng: np.random.Generator) -> Floats:
    """By a schedule that cuts the learning rate two or three times."""
    left = np.exp(-t / rng.uniform(0.03, 0.15))
    level = np.full(len(t), rng.uniform(0.2, 0.4))
    for place in np.sort(rng.uniform(0.3, 0.9, int(rng.integers(2, 4)))):
        level = np.where(t >= place, level * rng.uniform(0.3, 0.7), level)
    return np.asarray((1 - level[0]) * left + level)


def staged(t: Floats, rng: np.random.Generator) -> Floats:
    """It falls, rests, and falls again."""
    weights = rng.dirichlet(np.ones(3) * 2)
    places = np.concatenate([[0.0], np.sort(rng.uniform(0.15, 0.7, 2))])
    falls = [1 / (1 + np.exp(np.clip((t - place) / rng.uniform(0.01, 0.04) - 3, -50, 50))) for place in places]
    return np.asarray(sum(weight * fall for weight, fall in zip(weights, falls, strict=True)))


def annealed(t: Floats, rng: np.random.Generator) -> Floats:
    """A cosine schedule: most is gained in the first tenth and something more at the end."""
    last = rng.uniform(0.05, 0.25)
    return np.asarray((1 - last) * np.exp(-t / rng.uniform(0.03, 0.1)) + last * (1 + np.cos(np.pi * t)) / 2)


def steady(t: Floats, rng: np.random.Generator) -> Floats:
    """About the same share of the way in each epoch, as short trainings have."""
    return np.asarray(1 - t ** rng.uniform(0.4, 1.0))


SHAPES: dict[str, Shape] = {
    "exponential": exponential,
    "power_law": power_law,
    "stepped": stepped,
    "staged": staged,
    "annealed": annealed,
    "steady": steady,
}


def levels(family: str, rng: np.random.Generator) -> tuple[float, float]:
    """Where losses of this family start and end."""
    if family == "classification":
        start = math.log(int(rng.choice([2, 3, 5, 10, 20, 100, 200, 1000]))) * rng.uniform(0.95, 1.2)
        return start, start * rng.uniform(0.02, 0.6)
    if family == "language":
        start = rng.uniform(7.0, 11.5)
        return start, rng.uniform(1.8, 4.5)
    if family == "fine_tuning":
        start = rng.uniform(1.0, 4.5)
        return start, start * rng.uniform(0.6, 0.85)
    if family == "regression":
        start = float(np.exp(rng.uniform(math.log(1e-2), math.log(1e3))))
        return start, start * float(np.exp(rng.uniform(math.log(1e-3), math.log(0.5))))
    if family == "bounded":  # 1 - IoU, 1 - cosine similarity
        return rng.uniform(0.6, 0.98), rng.uniform(0.05, 0.45)
    if family == "detection":  # a sum of several parts
        return rng.uniform(3, 12), rng.uniform(0.8, 2.8)
    if family == "likelihood":  # crosses zero
        start = rng.uniform(0.5, 6)
        return start, start - rng.uniform(2, 10)
    raise ValueError(family)


FAMILIES = ("classification", "language", "fine_tuning", "regression", "bounded", "detection", "likelihood")
FAMILY_ODDS = (0.27, 0.2, 0.08, 0.15, 0.1, 0.14, 0.06)


def falling(t: Floats, shape: str, start: float, end: float, rng: np.random.Generator) -> Floats:
    """A curve of this shape from one level to the other."""
    left = SHAPES[shape](t, rng)
    return np.asarray(end + (start - end) * left)
