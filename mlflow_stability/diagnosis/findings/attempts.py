"""Attempts of a run, and what its events say of single batches.

An attempt is a part of a training without a rollback. Values of different attempts are never compared: after a rollback
weights and optimizer state are those of another step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves, attempt_spans, start_by_attempt
from mlflow_stability.kinds.reported.broken_steps import BatchFacts, BrokenBatchFacts, Rerun
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory

FOR_EVER = int(np.iinfo(np.int64).max)
BATCH_KINDS = frozenset({"broken_batch", "spike_batch"})


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    first: int
    last: int
    begins_training: bool  # whether the training was started in it; otherwise a rollback began it

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    def cut(self, curve: Curve | None) -> Curve | None:
        """Return the part of a curve that lies in it; None for no points."""
        if curve is None:
            return None
        low = int(np.searchsorted(curve.steps, self.first, side="left"))
        high = int(np.searchsorted(curve.steps, self.last, side="right"))
        return curve.of_points(low, high) if high > low else None


@dataclass(frozen=True, slots=True)
class RunAttempts:
    starts: Mapping[int, int]  # for each attempt the first attempt of its training
    spans: Mapping[int, tuple[int, int]]  # for each attempt its first step and its last
    begun_after: Mapping[int, tuple[int, ...]]
    """For each attempt the steps at which rollbacks say that the next one begins, also where points are thinned."""

    def around(self, start: int, step: int) -> AttemptSpan:
        """Return the attempt that a step lies in, among those of one start of the training."""
        attempts = [attempt for attempt in self.spans if self.starts.get(attempt, attempt) == start]
        begun = {self.spans[attempt][0] for attempt in attempts if attempt != start}
        begun |= {begin for attempt in attempts for begin in self.begun_after.get(attempt, ())}
        earlier, later = [begin for begin in begun if begin <= step], [begin for begin in begun if begin > step]
        first = max(earlier, default=min((self.spans[attempt][0] for attempt in attempts), default=0))
        last = min(later) - 1 if later else FOR_EVER
        return AttemptSpan(min(first, step), last, begins_training=not earlier)


def attempts_of_run(history: RunHistory) -> RunAttempts:
    begun: dict[int, tuple[int, ...]] = {}
    for event in history.events or ():
        if event.kind == "rollback":
            begun[event.attempt] = (*begun.get(event.attempt, ()), event.step + 1)
    return RunAttempts(start_by_attempt(history), attempt_spans(history), begun)


def batches_of(history: RunHistory, attempts: RunAttempts) -> Mapping[tuple[int, int], Finding]:
    """Return the first event about each batch, by start of the training and step."""
    batches: dict[tuple[int, int], Finding] = {}
    for event in history.events or ():
        if event.kind in BATCH_KINDS:
            batches.setdefault((attempts.starts.get(event.attempt, event.attempt), event.step), event)
    return batches


def file_of(event: Finding | None) -> str:
    """Return where the batch is saved; empty where it is not."""
    facts = None if event is None else event.facts
    return facts.saved_in if isinstance(facts, BatchFacts) else ""


def finite_again(event: Finding | None) -> str:
    """Return what to check if the model's output was finite when the batch was run again; empty if it was not."""
    facts = None if event is None else event.facts
    if not isinstance(facts, BrokenBatchFacts) or facts.rerun is not Rerun.AFTER_THE_MODEL:
        return ""
    return facts.rerun_words


MIN_POINTS_SINCE = 3  # points since a rollback that show how the training continued; with fewer, nothing is left out
POINTS_OF_STATE = 16  # values up to the restored state that show its level
LEARNT_SHARE = 0.1
"""Share of its first level that the loss must have fallen by: a rollback to an untrained state is a restart, which has
recovered only when the loss is back where it was."""

UndoneSteps = Mapping[int, tuple[tuple[int, int], ...]]
"""For each start of the training the rollbacks in effect: the restored step, and the step of the rollback."""


def undone_steps(events: Iterable[Finding] | None, starts: Mapping[int, int]) -> UndoneSteps:
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
