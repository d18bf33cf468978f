"""Leave the steps that rollbacks undid out of curves.

After a rollback the training continues from an earlier state. What it had reached or lost since then says nothing about
where it is now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.result import Finding

MIN_POINTS_SINCE = 3
"""Points since a rollback that show how the training continued; with fewer, nothing is left out."""
POINTS_OF_STATE = 16
"""Values up to the restored state that show its level."""
LEARNT_SHARE = 0.1
"""Share of its first level that the loss must have fallen by: a rollback to an untrained state is a restart, which has
recovered only when the loss is back where it was."""

UndoneSteps = Mapping[int, tuple[tuple[int, int], ...]]
"""For each start of the training the rollbacks in effect: the restored step, and the step of the rollback."""


def undone_steps(events: Iterable[Finding] | None, starts: Mapping[int, int]) -> UndoneSteps:
    """Return which steps were undone; a reverted rollback undoes only the steps since itself."""
    undone: dict[int, tuple[tuple[int, int], ...]] = {}
    for event in sorted(events or (), key=lambda event: (event.attempt, event.step)):
        facts, start = event.facts, starts.get(event.attempt, event.attempt)
        if isinstance(facts, RollbackFacts):
            earlier = undone.get(start, ())
            undone[start] = (*(earlier[:-1] if facts.reverts else earlier), (facts.target, event.step))
    return undone


def kept_points(curve: Curve, undone: UndoneSteps) -> Curve:
    """Return a loss without the points that rollbacks undid, where enough follow to show how it continued."""
    is_kept = np.ones(len(curve.steps), np.bool_)
    for target, rolled_back in undone.get(curve.attempt, ()):
        without = is_kept & ~((curve.steps > target) & (curve.steps <= rolled_back))
        since = int((without & (curve.steps > rolled_back)).sum())
        if since >= MIN_POINTS_SINCE and _trained_level(curve, is_kept & (curve.steps <= target)) is not None:
            is_kept = without
    return curve if is_kept.all() else replace(curve, steps=curve.steps[is_kept], values=curve.values[is_kept])


def kept_losses(curves: RunCurves, undone: UndoneSteps) -> RunCurves:
    """Return the curves, losses without the points that rollbacks undid."""
    losses, validations = (
        tuple(kept_points(curve, undone) for curve in of) for of in (curves.losses, curves.validations)
    )
    return replace(curves, losses=losses, validations=validations)


def restored_level(curve: Curve, undone: UndoneSteps, since: int | None = None) -> float | None:
    """Return the level of the loss in the state that the last rollback restored; None without one that had learnt.

    ``since``: count only a rollback of this step or a later one, to a state before it.
    """
    restored = [
        target
        for target, rolled_back in undone.get(curve.attempt, ())
        if since is None or target < since <= rolled_back
    ]
    if not restored:
        return None
    kept = kept_points(curve, undone)
    return _trained_level(kept, kept.steps <= restored[-1])


def _trained_level(curve: Curve, until: NDArray[np.bool_]) -> float | None:
    """Return the level of the last of these points; None if the loss had hardly fallen."""
    values = curve.values[until & curve.finite]
    if not len(values):
        return None
    first, level = float(np.median(values[:MIN_POINTS_SINCE])), float(np.median(values[-POINTS_OF_STATE:]))
    return level if level <= first - LEARNT_SHARE * abs(first) else None
