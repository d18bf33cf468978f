"""Tells a training that was resumed from several runs in one file, and puts the pieces of the former together.

In: the curves of a run, each start of the training apart. Out: whether each start goes on where the one before had
come to, and curves from the first step to the last as the training that is left saw them. Guarantees: a start at the
first step again is a run of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mlflow_stability.curves.curves import Curve

LATER = 0.1
"""A start goes on with a training if it begins so far, as a share of its steps, behind its first step."""


def goes_on(before: Curve, after: Curve) -> bool:
    """Whether a piece goes on where the one before had come to, or somewhat earlier."""
    first, last = int(before.steps[0]), int(before.steps[-1])
    return int(after.steps[0]) > first + max(3 * before.distance, LATER * (last - first))


def pieces_of(curves: Sequence[Curve]) -> list[list[Curve]]:
    """The pieces of each metric, in order of time."""
    named: dict[str, list[Curve]] = {}
    for curve in curves:
        named.setdefault(curve.name, []).append(curve)
    return [sorted(each, key=lambda curve: curve.attempt) for each in named.values()]


def resumed_in(curves: Sequence[Curve]) -> int | None:
    """The start that a training ended in that was resumed once or more; None for any other."""
    several = [each for each in pieces_of(curves) if len(each) > 1]
    if not several or not all(goes_on(one, other) for each in several for one, other in pairwise(each)):
        return None
    return max(each[-1].attempt for each in several)


def joined(curves: Sequence[Curve]) -> list[Curve]:
    """Each metric as one curve; of steps that were done twice the later values."""
    found = []
    for pieces in pieces_of(curves):
        whole = pieces[0]
        for each in pieces[1:]:
            kept = int(np.searchsorted(whole.steps, int(each.steps[0])))
            steps = np.concatenate([whole.steps[:kept], each.steps])
            values = np.concatenate([whole.values[:kept], each.values])
            whole = replace(each, steps=steps, values=values)
        found.append(whole)
    return found
