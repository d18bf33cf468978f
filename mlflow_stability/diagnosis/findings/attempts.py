"""Attempts of a run, and what its events say of single batches.

An attempt is a part of a training without a rollback. Values of different attempts are never compared: after a rollback
weights and optimizer state are those of another step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import Curve, attempt_spans, start_by_attempt
from mlflow_stability.kinds.reported.broken_steps import BatchFacts, BrokenBatchFacts, Rerun
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory

FOR_EVER = int(np.iinfo(np.int64).max)
BATCH_KINDS = frozenset({"broken_batch", "spike_batch"})


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    first: int
    last: int
    begins_training: bool
    """Whether the training was started in it; otherwise a rollback began it."""

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
    starts: Mapping[int, int]
    """For each attempt the first attempt of its training."""
    spans: Mapping[int, tuple[int, int]]
    """For each attempt its first step and its last."""
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
