"""Looks for the cause in gradients that are never cleared.

The argument: a sum of gradients that nobody clears grows by about one gradient in each step, evenly and ever more
slowly in relation to itself, while the loss is still as usual; a training that diverges multiplies its gradients, and
its loss with them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.look import Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.surroundings import Surroundings, shown

FEWEST = 8
"""So many steps of growth at least."""
USUAL = 64
"""So many norms before tell what is usual."""
GROWN = 2.5
"""The norm must have grown by so much while the loss was as usual."""
NEAR = 16
"""The growth ends at most so many points before or after the beginning of the trouble."""
MOSTLY = 0.6
"""This share of the steps at least went up."""


def accumulation_look(around: Surroundings) -> Look:
    """Whether gradients pile up because nothing clears them between steps."""
    loss, norm = around.loss, around.norm
    if loss is None or norm is None or not around.every_step or not np.array_equal(loss.steps, norm.steps):
        return not_seen("gradients that pile up: loss and gradient norm of each step were not logged")
    start = int(np.searchsorted(norm.steps, around.episode.start, side="right"))
    if start < USUAL + FEWEST or not np.isfinite([norm.values[:start][-USUAL:], loss.values[:start][-USUAL:]]).all():
        return not_seen("gradients that pile up: too few steps before it")
    # What was found may begin anywhere in the growth, or a little behind it.
    ends = range(min(start + NEAR, len(norm.values)), start - NEAR, -1)
    sums = ((end, _sum_like(norm.values[:end], loss.values[:end])) for end in ends)
    end, grown = next((each for each in sums if each[1] is not None), (start, None))
    if grown is None:
        return is_not(
            "gradients that are never cleared: their norm did not grow as a sum does while the loss was usual"
        )
    return is_it(
        "gradients_not_cleared",
        f"The gradients grew as a sum does, from {shown(float(grown[0]))} to {shown(float(grown[-1]))} in the "
        f"{len(grown)} steps to step {int(norm.steps[end - 1])}, while the loss was as usual: perhaps they are not "
        "cleared between steps.",
        f"no step added more than {shown(float(np.abs(np.diff(grown)).max()))} to the norm",
        since=int(norm.steps[end - len(grown)]),
        certainty="possible",
    )


def _sum_like(norms: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The last norms, if they grow as a sum of gradients does; None: they do not."""
    low = len(norms) - 4 * FEWEST
    usual = norms[max(0, low - USUAL) : low]
    if len(usual) < FEWEST:
        return None
    middle, highest = float(np.median(usual)), float(usual.max())
    within = np.flatnonzero(norms[low:] <= middle)
    if not len(within):
        return None
    grown = norms[low + int(within[-1]) :]
    if len(grown) < FEWEST or not np.isfinite(grown).all() or float(grown[-1]) < GROWN * middle:
        return None
    changes = np.diff(grown)
    ordinary = losses[max(0, low - USUAL) : low]
    calm = float(np.median(losses[-len(grown) :])) <= float(ordinary.max())
    count = np.arange(1, len(grown) + 1)
    logs = np.log(grown)
    as_a_sum, as_a_power = np.corrcoef(np.log(count), logs)[0, 1], np.corrcoef(count, logs)[0, 1]
    even = float(np.abs(changes).max()) <= 1.5 * highest and float((changes > 0).mean()) >= MOSTLY
    return grown if calm and even and as_a_sum > as_a_power else None
