"""Tells the attempts of a run apart by its steps alone: a step that goes back is a restart, or another run behind it.

In: the steps of one series in the order in which they were logged. Out: for each point its attempt, counted from 0, and
an order in which every attempt is sorted by step. Guarantees: points that merely overtook each other on their way to
the log, as they do when several threads write, are put back in order and are no restart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_OVERTAKEN = 3
"""How many points may come late, and by how many usual distances between steps."""


def attempts_of(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The attempt of each point."""
    attempts = np.zeros(len(steps), np.int64)
    backward = np.flatnonzero(np.diff(steps) < 0) + 1
    if not len(backward):
        return attempts
    ahead = np.diff(steps)
    usual = float(np.median(ahead[ahead > 0])) if (ahead > 0).any() else 1.0
    began, attempt = 0, 0
    for index in backward:
        highest = int(steps[began:index].max())
        if steps[index] >= highest:
            continue  # came back from an overtaken point
        soon = steps[index : index + MOST_OVERTAKEN + 1]
        is_late = highest - int(steps[index]) <= MOST_OVERTAKEN * usual and bool((soon > highest).any())
        repeats = bool((steps[began:index] == steps[index]).any())
        if is_late and not repeats:
            continue
        attempt += 1
        attempts[index:] = attempt
        began = int(index)
    return attempts


def in_order(steps: NDArray[np.int64], attempts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of the points, attempt by attempt and sorted by step; of one step, as they were logged."""
    return np.lexsort((steps, attempts)).astype(np.int64)
